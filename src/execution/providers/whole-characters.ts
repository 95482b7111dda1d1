/** Passes a text on in pieces that end with whole characters: vendors may split a character between two pieces. */
export class WholeCharacters {
  readonly #pass: ((text: string) => void) | undefined
  #half = ''

  constructor(pass: ((text: string) => void) | undefined) {
    this.#pass = pass
  }

  add(piece: string): void {
    const text = this.#half + piece
    this.#half = /[\ud800-\udbff]$/.test(text) ? text.slice(-1) : ''
    this.#send(this.#half === '' ? text : text.slice(0, -1))
  }

  /** Passes on what remains. */
  end(): void {
    this.#send(this.#half)
    this.#half = ''
  }

  #send(text: string): void {
    if (text !== '') this.#pass?.(text.replaceAll('\0', '\u{fffd}'))
  }
}
