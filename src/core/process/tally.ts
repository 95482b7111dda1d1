/** Numbers of open things of this process by key; keys without any take no memory. */
export class Tally {
  readonly #counts = new Map<string, number>()

  count(key: string): number {
    return this.#counts.get(key) ?? 0
  }

  add(key: string): void {
    this.#counts.set(key, this.count(key) + 1)
  }

  remove(key: string): void {
    if (this.count(key) > 1) this.#counts.set(key, this.count(key) - 1)
    else this.#counts.delete(key)
  }
}
