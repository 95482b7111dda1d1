const LF = 10
const CR = 13
const BOM = /^\ufeff/

/**
 * Reads the data of events out of a stream of them (text/event-stream) as its bytes come. Every byte is looked at once,
 * however small the parts are that it comes in.
 */
export class EventReader {
  #line: Buffer[] = []
  #data: string[] = []
  #returned = false

  /** The data of every event that ends in these bytes. */
  read(chunk: Buffer): string[] {
    const ended: string[] = []
    let start = 0
    for (let index = 0; index < chunk.length; index++) {
      const byte = chunk[index]
      const returned = this.#returned
      this.#returned = byte === CR
      if (byte !== LF && byte !== CR) continue
      // The second half of a line end.
      if (byte === LF && returned) {
        start = index + 1
        continue
      }
      // Between events: a stream of line ends costs no more than its bytes.
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
