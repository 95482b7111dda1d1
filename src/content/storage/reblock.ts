/**
 * Yields a stream of bytes in blocks of `size` bytes; the last one may be shorter, and an empty stream has none. Reuses
 * `buffers` buffers in rotation, so a block is valid until `buffers` more are read: allocating every block would
 * produce tens of megabytes of garbage in a large upload.
 */
export async function* reblock(source: AsyncIterable<Buffer>, size: number, buffers: number): AsyncGenerator<Buffer> {
  const pool: Buffer[] = []
  let turn = 0
  let filled = 0
  const current = (): Buffer => (pool[turn] ??= Buffer.allocUnsafeSlow(size))
  // A single small piece needs no buffer.
  let only: Buffer | null = null
  for await (const next of source) {
    if (pool.length === 0 && !only && next.length < size) {
      only = next
      continue
    }
    for (let piece of only ? [only, next] : [next])
      while (piece.length > 0) {
        const copied = piece.copy(current(), filled)
        filled += copied
        piece = piece.subarray(copied)
        if (filled === size) {
          yield current()
          turn = (turn + 1) % buffers
          filled = 0
        }
      }
    only = null
  }
  if (only && only.length > 0) yield only
  if (filled > 0) yield current().subarray(0, filled)
}
