/** Cuts a stream of bytes anew into blocks of `size` bytes, the last one shorter; holds one block. An empty stream has none. */
export async function* blocksOf(source: AsyncIterable<Buffer>, size: number): AsyncGenerator<Buffer> {
  let held: Buffer[] = []
  let length = 0
  for await (const piece of source) {
    let rest = piece
    while (length + rest.length >= size) {
      const taken = size - length
      yield Buffer.concat([...held, rest.subarray(0, taken)], size)
      rest = rest.subarray(taken)
      held = []
      length = 0
    }
    if (rest.length > 0) {
      held.push(rest)
      length += rest.length
    }
  }
  if (length > 0) yield Buffer.concat(held, length)
}
