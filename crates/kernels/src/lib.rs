//! Quantized tensor formats and the operations on them, on the CPU.
