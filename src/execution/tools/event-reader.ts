const LF = 10
const CR = 13
const BOM = /^\ufeff/

/**
 * Reads the data of events from an event stream (text/event-stream) chunk by chunk. Each byte is examined once, however
 * small the chunks are.
 */
export class EventReader {
  #line: Buffer[] = []
  #data: string[] = []
  #afterCr = false

  /** Returns the data of every event that ends in this chunk. */
  read(chunk: Buffer): string[] {
    const ended: string[] = []
    let start = 0
    for (let index = 0; index < chunk.length; index++) {
      const byte = chunk[index]
      const afterCr = this.#afterCr
      this.#afterCr = byte === CR
      if (byte !== LF && byte !== CR) continue
      // Second half of a CRLF line end.
      if (byte === LF && afterCr) {
        start = index + 1
        continue
      }
      // Empty lines between events are not stored, so a stream of line ends costs no memory.
      const isBetween = start === index && this.#line.length === 0 && this.#data.length === 0
      if (!isBetween) this.#line.push(chunk.subarray(start, index))
      start = index + 1
      if (isBetween) continue
      const data = this.#endLine()
      if (data !== null) ended.push(data)
    }
    if (start < chunk.length) this.#line.push(chunk.subarray(start))
    return ended
  }

  #endLine(): string | null {
    const line = Buffer.concat(this.#line).toString('utf8').replace(BOM, '')
    this.#line = []
    if (line === 'data') this.#data.push('')
    else if (line.startsWith('data:')) this.#data.push(line.slice(line[5] === ' ' ? 6 : 5))
    if (line !== '' || this.#data.length === 0) return null
    const data = this.#data.join('\n')
    this.#data = []
    return data
  }
}
