import { declarations } from '../declarations.ts'
import type { Operation } from './operation.ts'
import { fieldsOf } from './parameters.ts'

/** The command of each operation: one to four words, of which clients make methods and command lines verbs. */

const VERBS = { get: 'get', post: 'create', put: 'replace', patch: 'update', delete: 'delete' } as const
const TAG_VERBS: Partial<Record<Operation['method'], string>> = { get: 'get', put: 'replace', patch: 'merge' }
const WORD = /^[a-z][a-z0-9-]*$/
const MOST_WORDS = 4

export type Command = { id: string; words: readonly string[] }

/** The commands of the process, by the ids of their operations. */
export const workerCommands = declarations<Command>('command of operation', ({ id }) => id)

/** How a list is paged; null for any other operation. */
export function pagingOf({ paged, answers }: Operation): 'offset' | 'cursor' | null {
  if (paged) return 'offset'
  return 'next_cursor' in fieldsOf(answers[200] ?? null) ? 'cursor' : null
}

/** What is called by machines that hold a token of their own has no command. */
const hasCommand = ({ gate, internal }: Operation): boolean => gate !== 'public' || !internal

const isParameter = (segment: string): boolean => segment.startsWith('{')

/** The words that follow from method and path. `collections`: paths that have a list, and roots of modules. */
function derived({ method, path }: Operation, collections: ReadonlySet<string>, lists: ReadonlySet<string>): string[] {
  const segments = path.split('/').slice(1)
  const words = segments.filter(segment => !isParameter(segment))
  if (segments.at(-1) === 'tags') return [...words, TAG_VERBS[method] ?? VERBS[method]]
  if (method === 'get' && lists.has(path)) return [...words, 'list']
  if (collections.has(path) || isParameter(segments.at(-1) as string)) return [...words, VERBS[method]]
  return words
}

const isPrefix = (short: readonly string[], long: readonly string[]): boolean =>
  short.length <= long.length && short.every((word, index) => word === long[index])

/**
 * The commands of operations.
 * @throws Error for words of another form, and for a command that is another one or begins it
 */
export function commandsOf(operations: readonly Operation[]): Command[] {
  const lists = new Set(operations.filter(each => pagingOf(each) !== null).map(({ path }) => path))
  const collections = new Set([...lists, ...operations.map(({ path }) => `/${path.split('/')[1]}`)])
  const named = operations
    .filter(hasCommand)
    .map(each => ({ operation: each, words: each.command ?? derived(each, collections, lists) }))
  const ofItems = new Set(named.filter(({ operation: { path } }) => path.includes('{')).map(({ words }) => `${words}`))
  const made = named.map(({ operation: { id, path, command }, words }) => {
    const isMany = !command && !path.includes('{') && ofItems.has(`${words}`)
    return { id, words: isMany ? [...words.slice(0, -1), `${words.at(-1)}-many`] : words }
  })
  const sorted = made.toSorted((a, b) => (a.words.join(' ') < b.words.join(' ') ? -1 : 1))
  for (const { id, words } of sorted) {
    if (words.length > MOST_WORDS || !words.every(word => WORD.test(word)))
      throw new Error(`operation ${id} has the command '${words.join(' ')}', which is none`)
    const other = sorted.find(each => each.id !== id && isPrefix(words, each.words))
    if (other) throw new Error(`the command of ${id}, '${words.join(' ')}', is that of ${other.id} or begins it`)
  }
  return made
}
