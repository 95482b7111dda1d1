/** Names of resources and parameters in exported templates. */

const MAX = 100

/** A name out of words, such as `AgentSupportDesk`. */
export const nameOf = (...words: string[]): string =>
  words
    .flatMap(word => word.normalize('NFKD').split(/[^A-Za-z0-9]+/))
    .filter(word => word !== '')
    .map(word => word[0].toUpperCase() + word.slice(1))
    .join('')
    .slice(0, MAX)

/** Gives each name once: a second one gets a number. */
export class Names {
  readonly #taken = new Set<string>()

  take(name: string): string {
    let free = name
    for (let count = 2; this.#taken.has(free); count++) free = `${name}_${count}`
    this.#taken.add(free)
    return free
  }
}
