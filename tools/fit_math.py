import math
from math import erf

import numpy as np


# weighted Chebyshev-node least squares in float64, iterate reweight (Lawson) for minimax
def fit(f,a,b,deg,basis,weight=lambda x:1,n=4000,iters=60):
    k=np.arange(n); x=(a+b)/2+(b-a)/2*np.cos(np.pi*(2*k+1)/(2*n))
    y=np.array([f(t) for t in x]); w=np.ones(n); W=np.array([weight(t) for t in x])
    A=np.stack([basis(x,d) for d in deg],1)
    best=None
    for _ in range(iters):
        s=np.sqrt(w)*W
        c,*_=np.linalg.lstsq(A*s[:,None],y*s,rcond=None)
        e=np.abs((A@c-y)*W)
        if best is None or e.max()<best[0]: best=(e.max(),c)
        w=w*(e/e.max()+1e-12); w/=w.sum()
    return best
# exp(r) on [-ln2/2, ln2/2]: 1 + r + r^2*P(r)
h=math.log(2)/2*1.001
e,c=fit(lambda r:(math.exp(r)-1-r)/(r*r) if abs(r)>1e-4 else .5+r/6+r*r/24,-h,h,range(5),lambda x,d:x**d, lambda r:r*r)
print('exp',e,[float(np.float32(t)) for t in c])
# tanh(x) on |x|<0.625 : x + x^3 P(x^2)
e,c=fit(lambda x:(math.tanh(x)-x)/x**3 if x>1e-2 else -1/3+2*x*x/15-17*x**4/315,0,0.63,range(5),lambda x,d:x**(2*d), lambda x:x*x)
print('tanh',e,[float(np.float32(t)) for t in c])
# erf(x) for |x|<1: x*P(x^2)
e,c=fit(lambda x:erf(x)/x if x>1e-8 else 2/math.sqrt(math.pi),0,1.0,range(7),lambda x,d:x**(2*d))
print('erf small',e,[float(np.float32(t)) for t in c])
# log erfc(x) on [1,4]: polynomial
e,c=fit(lambda x:math.log(math.erfc(x)),0.98,4.0,range(9),lambda x,d:x**d,lambda x: math.erfc(x))
print('log erfc',e,[float(np.float32(t)) for t in c])
# log(1+f), f in [sqrt(.5)-1, sqrt2-1]: f - f^2/2 + f^3 P(f)
e,c=fit(lambda f:(math.log1p(f)-f+f*f/2)/f**3 if abs(f)>1e-3 else 1/3-f/4+f*f/5,math.sqrt(.5)-1,math.sqrt(2)-1,range(8),lambda x,d:x**d,lambda f:f*f)
print('log',e,[float(np.float32(t)) for t in c])
# log erfc(x) = x*P(x) on [0,5], absolute error of erfc, for 1 + erf x (erfc from 0)
e,c=fit(lambda x:math.log(math.erfc(x)),0,5.0,range(1,9),lambda x,d:x**d,lambda x: math.erfc(x),iters=300)
print('log erfc from 0',e,[float(np.float32(t)) for t in c])
