import { declarations } from '../base/declarations.ts'
import type { Operation } from './operation.ts'
import { fieldsOf } from './parameters.ts'

/** The command of each operation: one to four words, used for methods of clients and verbs of command lines. */

const VERBS = { get: 'get', post: 'create', put: 'replace', patch: 'update', delete: 'delete' } as const
const TAG_VERBS: Partial<Record<Operation['method'], string>> = { get: 'get', put: 'replace', patch: 'merge' }
const WORD = /^[a-z][a-z0-9-]*$/
const MAX_WORDS = 4

export type Command = { id: string; words: readonly string[] }

/** The commands of all operations, by operation id. */
export const workerCommands = declarations<Command>('command of operation', ({ id }) => id)

/** Returns how a list is paged; null if the operation is not a list. */
export function pagingOf({ paged, answers }: Operation): 'offset' | 'cursor' | null {
  if (paged) return 'offset'
  return 'next_cursor' in fieldsOf(answers[200] ?? null) ? 'cursor' : null
}

/** Whether an operation has a command. Internal public operations are called by machines with their own tokens. */
const hasCommand = ({ gate, internal }: Operation): boolean => gate !== 'public' || !internal

const isParameter = (segment: string): boolean => segment.startsWith('{')

/** Derives the words from method and path. `collections` contains paths with a list and the roots of modules. */
function deriveWords(
  { method, path }: Operation,
  collections: ReadonlySet<string>,
  lists: ReadonlySet<string>,
): string[] {
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
 * Returns the commands of operations.
 * @throws Error if a command has an invalid word, or equals or is a prefix of another command
 */
export function commandsOf(operations: readonly Operation[]): Command[] {
  const lists = new Set(operations.filter(each => pagingOf(each) !== null).map(({ path }) => path))
  const collections = new Set([...lists, ...operations.map(({ path }) => `/${path.split('/')[1]}`)])
  const named = operations
    .filter(hasCommand)
    .map(each => ({ operation: each, words: each.command ?? deriveWords(each, collections, lists) }))
  const itemCommands = new Set(
    named.filter(({ operation: { path } }) => path.includes('{')).map(({ words }) => `${words}`),
  )
  const commands = named.map(({ operation: { id, path, command }, words }) => {
    const isMany = !command && !path.includes('{') && itemCommands.has(`${words}`)
    return { id, words: isMany ? [...words.slice(0, -1), `${words.at(-1)}-many`] : words }
  })
  const sorted = commands.toSorted((a, b) => (a.words.join(' ') < b.words.join(' ') ? -1 : 1))
  for (const { id, words } of sorted) {
    if (words.length > MAX_WORDS || !words.every(word => WORD.test(word)))
      throw new Error(`operation ${id} has the invalid command '${words.join(' ')}'`)
    const other = sorted.find(each => each.id !== id && isPrefix(words, each.words))
    if (other)
      throw new Error(`command '${words.join(' ')}' of ${id} equals or is a prefix of a command of ${other.id}`)
  }
  return commands
}
