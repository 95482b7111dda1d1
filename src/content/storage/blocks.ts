/**
 * Cuts a stream of bytes anew into blocks of `size` bytes, the last one shorter; an empty stream has none. Works in
 * `buffers` buffers that take turns, so a block is valid until as many more were asked for: new memory for every block
 * would be tens of megabytes of garbage in a large upload.
 */
export async function* blocksOf(source: AsyncIterable<Buffer>, size: number, buffers: number): AsyncGenerator<Buffer> {
  const pool: Buffer[] = []
  let turn = 0
  let filled = 0
  const current = (): Buffer => (pool[turn] ??= Buffer.allocUnsafeSlow(size))
  for await (let piece of source) {
    while (piece.length > 0) {
      const taken = piece.copy(current(), filled)
      filled += taken
      piece = piece.subarray(taken)
      if (filled === size) {
        yield current()
        turn = (turn + 1) % buffers
        filled = 0
      }
    }
  }
  if (filled > 0) yield current().subarray(0, filled)
}
