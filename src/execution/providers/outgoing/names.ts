import { createHash } from 'node:crypto'

/** Names that a vendor accepts for names that it does not, in both directions. */
export class NameMap {
  readonly #accepted: RegExp
  readonly #make: (name: string, attempt: number) => string
  readonly #outgoing = new Map<string, string>()
  readonly #original = new Map<string, string>()

  /** @param make returns an accepted name for another one; later attempts return others */
  constructor(accepted: RegExp, make: (name: string, attempt: number) => string) {
    this.#accepted = accepted
    this.#make = make
  }

  /** Reserves names that stay as they are, so that none is made for another one. */
  reserve(names: Iterable<string>): this {
    for (const name of names) if (this.#accepted.test(name)) this.#set(name, name)
    return this
  }

  /** Returns the accepted name, equal in each request with the same names. */
  outgoing(name: string): string {
    const known = this.#outgoing.get(name)
    if (known !== undefined) return known
    let made = name
    for (let attempt = 0; !this.#accepted.test(made) || this.#original.has(made); attempt++)
      made = this.#make(name, attempt)
    return this.#set(name, made)
  }

  /** Returns the name for an accepted one; a name that was never sent is returned unchanged. */
  original(accepted: string): string {
    return this.#original.get(accepted) ?? accepted
  }

  /** Names that were changed: the original and the sent one. */
  changed(): [string, string][] {
    return [...this.#outgoing].filter(([name, made]) => name !== made)
  }

  #set(name: string, made: string): string {
    this.#outgoing.set(name, made)
    this.#original.set(made, name)
    return made
  }
}

/** Returns letters and digits of a hash. */
export const hashText = (text: string, length: number): string =>
  createHash('sha256').update(text).digest('hex').slice(0, length)

const MAX_NAME = 64
const HASH = 8

/** Returns an accepted name that resembles another one. */
export function similarName(name: string, attempt: number): string {
  const plain = name.normalize('NFKD').replace(/[^a-zA-Z0-9_-]+/g, '_')
  const start = /^[a-zA-Z_]/.test(plain) ? plain : `_${plain}`
  if (attempt === 0 && start.length <= MAX_NAME) return start
  return `${start.slice(0, MAX_NAME - HASH - 1)}_${hashText(`${name} ${attempt}`, HASH)}`
}
