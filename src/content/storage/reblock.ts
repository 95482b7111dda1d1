/**
 * Cuts a stream of bytes anew into blocks of `size` bytes, the last one shorter; an empty stream has none. Works in
 * `buffers` buffers that take turns, so a block is valid until as many more were asked for: new memory for every block
 * would be tens of megabytes of garbage in a large upload.
 */
export async function* reblock(source: AsyncIterable<Buffer>, size: number, buffers: number): AsyncGenerator<Buffer> {
  const pool: Buffer[] = []
  let turn = 0
  let filled = 0
  const current = (): Buffer => (pool[turn] ??= Buffer.allocUnsafeSlow(size))
  // As long as one small piece is all there is, it needs no buffer.
  let only: Buffer | null = null
  for await (const came of source) {
    if (pool.length === 0 && !only && came.length < size) {
      only = came
      continue
    }
    for (let piece of only ? [only, came] : [came])
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
    only = null
  }
  if (only && only.length > 0) yield only
  if (filled > 0) yield current().subarray(0, filled)
}
