// One of the doors of `doors_bench.py`: a compiled model from C#, by P/Invoke on the C library.
// What it is called with and answers is in door.c.
using System;
using System.IO;
using System.Runtime.InteropServices;
using System.Text;

[StructLayout(LayoutKind.Sequential)]
unsafe struct Tensor {
  public void* data;
  public UIntPtr bytes;
  public int type, rank;
  public fixed long shape[16];
}

[StructLayout(LayoutKind.Sequential)]
struct SessionOptions {
  public UIntPtr size;
  public int workers;
}

[StructLayout(LayoutKind.Sequential)]
unsafe struct Port {
  public IntPtr name;
  public int type, rank;
  public long* shape;
  public IntPtr names;
}

static unsafe class Door {
  const string Library = "vermilion"; // libvermilion.so, on LD_LIBRARY_PATH

  [DllImport(Library)] static extern IntPtr vermilion_open(byte[] path, IntPtr options, out IntPtr model);
  [DllImport(Library)] static extern IntPtr vermilion_session_new(IntPtr model, ref SessionOptions options, out IntPtr session);
  [DllImport(Library)] static extern UIntPtr vermilion_input_count(IntPtr model);
  [DllImport(Library)] static extern UIntPtr vermilion_output_count(IntPtr model);
  [DllImport(Library)] static extern Port* vermilion_input(IntPtr model, UIntPtr index);
  [DllImport(Library)] static extern IntPtr vermilion_shapes(IntPtr session, Tensor* inputs, UIntPtr inputCount, Tensor* outputs, UIntPtr outputCount);
  [DllImport(Library)] static extern IntPtr vermilion_run(IntPtr session, Tensor* inputs, UIntPtr inputCount, Tensor* outputs, UIntPtr outputCount, IntPtr pool);
  [DllImport(Library)] static extern IntPtr vermilion_status_text(IntPtr status);

  [DllImport("libc")] static extern int clock_gettime(int clock, long* time);

  // The clock on the wall, or this process's time on processors where $DOOR_CLOCK is `cpu`.
  static double NowMs() {
    long* time = stackalloc long[2];
    clock_gettime(Environment.GetEnvironmentVariable("DOOR_CLOCK") == "cpu" ? 2 : 1, time);
    return time[0] * 1e3 + time[1] / 1e6;
  }

  static void Must(IntPtr status) {
    if (status == IntPtr.Zero) return;
    Console.Error.WriteLine(Marshal.PtrToStringAnsi(vermilion_status_text(status)));
    Environment.Exit(3);
  }

  static void* Room(long bytes) {
    long at = (long)Marshal.AllocHGlobal((IntPtr)(bytes + 128));
    return (void*)((at + 63) / 64 * 64);
  }

  static long ElementBytes(int type) {
    switch (type) {
      case 7: return 8;
      case 1: case 6: return 4;
      case 4: case 5: case 10: case 16: return 2;
      default: return 1;
    }
  }

  static int Main(string[] words) {
    if (words.Length < 3) return 2;
    IntPtr model, session;
    var options = new SessionOptions { size = (UIntPtr)(ulong)sizeof(SessionOptions), workers = int.Parse(words[1]) };
    Must(vermilion_open(Encoding.UTF8.GetBytes(words[0] + "\0"), IntPtr.Zero, out model));
    Must(vermilion_session_new(model, ref options, out session));
    UIntPtr inputCount = vermilion_input_count(model), outputCount = vermilion_output_count(model);
    var inputs = (Tensor*)Room(sizeof(Tensor) * 32);
    var outputs = (Tensor*)Room(sizeof(Tensor) * 32);
    string door = Environment.GetEnvironmentVariable("DOOR");
    for (int folder = words.Length - 1; folder >= 2; folder--) {
      for (int i = 0; i < (int)inputCount; i++) {
        byte[] data = File.ReadAllBytes(words[folder] + "/in" + i + ".bin");
        string text = File.ReadAllText(words[folder] + "/in" + i + ".shape").Trim();
        string[] sizes = text.Length == 0 ? new string[0] : text.Split('x');
        inputs[i].data = Room(data.Length);
        inputs[i].bytes = (UIntPtr)(ulong)data.Length;
        Marshal.Copy(data, 0, (IntPtr)inputs[i].data, data.Length);
        inputs[i].type = vermilion_input(model, (UIntPtr)(ulong)i)->type;
        inputs[i].rank = sizes.Length;
        for (int k = 0; k < sizes.Length; k++) inputs[i].shape[k] = long.Parse(sizes[k]);
      }
      Must(vermilion_shapes(session, inputs, inputCount, outputs, outputCount));
      for (int i = 0; i < (int)outputCount; i++) {
        long bytes = ElementBytes(outputs[i].type);
        for (int k = 0; k < outputs[i].rank; k++) bytes *= outputs[i].shape[k];
        outputs[i].bytes = (UIntPtr)(ulong)bytes;
        outputs[i].data = Room(bytes);
      }
      Must(vermilion_run(session, inputs, inputCount, outputs, outputCount, IntPtr.Zero));
      for (int i = 0; i < (int)outputCount; i++) {
        var data = new byte[(int)outputs[i].bytes];
        Marshal.Copy((IntPtr)outputs[i].data, data, 0, data.Length);
        File.WriteAllBytes(words[folder] + "/" + door + "-out" + i + ".bin", data);
      }
    }
    Console.WriteLine("ready");
    string line;
    while ((line = Console.ReadLine()) != null) {
      int runs = int.Parse(line);
      double begin = NowMs();
      for (int i = 0; i < runs; i++) Must(vermilion_run(session, inputs, inputCount, outputs, outputCount, IntPtr.Zero));
      Console.WriteLine(((NowMs() - begin) / runs).ToString("F6", System.Globalization.CultureInfo.InvariantCulture));
    }
    return 0;
  }
}
