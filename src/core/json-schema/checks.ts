import { hash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { sharedSingleton } from '../base/process-singleton.ts'
import { type ThreadOutcome, type ThreadPool, threadTask, type WaitOptions } from '../threads/pool.ts'
import { threads } from '../threads/threads.ts'
import {
  MAX_SCHEMA_BYTES,
  noVerdictProblem,
  SchemaError,
  type SchemaProblem,
  type SchemaRules,
  timeoutProblem,
} from './model.ts'
import type * as schemaTask from './task.ts'

export { SchemaError, type SchemaProblem, type SchemaRules } from './model.ts'

/** A schema of a project as JSON. */
export type SchemaOf = {
  project: string
  text: string
  rules: SchemaRules
}

export type CheckOptions = WaitOptions

const task = threadTask<typeof schemaTask>('schemas', new URL('./task.ts', import.meta.url))

type Outcome = ThreadOutcome<ReturnType<typeof schemaTask.run>>

/** Longest value as JSON; in the memory of a thread it takes ten to twenty times as much. */
const MAX_VALUE_LENGTH = 4 * 1024 * 1024
/** Schemas of one definition compiled concurrently. */
const CONCURRENCY = 4

/**
 * Checks schemas and values in threads (core/threads), so that no schema of a caller compiles or runs on
 * the event loop. Refused schemas are cached.
 */
export class SchemaChecks {
  readonly #threads: ThreadPool
  /** By schema: whether it was accepted, or the reason for which it was refused. */
  readonly #schemas = new LRUCache<string, { refused: string | null }>({ max: 5000 })

  constructor(threads: ThreadPool) {
    this.#threads = threads
  }

  /**
   * Checks that a schema can be used.
   * @throws SchemaError, or SERVICE_NOT_READY if too many checks of the project are waiting or this one waited too long
   */
  async check(schema: SchemaOf, options: CheckOptions = {}): Promise<void> {
    const key = keyOf(schema)
    if (!this.#isAccepted(schema, key)) await this.#run(schema, key, [], options)
  }

  /**
   * Returns the violations of each value, at most 50, empty for a valid one. A value whose check takes longer than 50
   * ms of processor time is a violation too.
   * @throws SchemaError, SERVICE_NOT_READY like `check`
   */
  async problems(schema: SchemaOf, values: readonly unknown[], options: CheckOptions = {}): Promise<SchemaProblem[][]> {
    const key = keyOf(schema)
    this.#isAccepted(schema, key)
    const texts = values.map(value => JSON.stringify(value))
    const results: SchemaProblem[][] = []
    while (results.length < texts.length) {
      const rest = texts.slice(results.length)
      const tooLarge = rest.findIndex(({ length }) => length > MAX_VALUE_LENGTH)
      if (tooLarge === 0)
        results.push([noVerdictProblem('size', `is larger than ${MAX_VALUE_LENGTH} characters of JSON`)])
      else results.push(...(await this.#run(schema, key, tooLarge > 0 ? rest.slice(0, tooLarge) : rest, options)))
    }
    return results
  }

  /**
   * Returns for each schema the reason for which it cannot be used, null for a usable one. Schemas that are checked in a
   * transaction are compiled before it by the same call: then the transaction waits for none of them.
   * @throws SERVICE_NOT_READY like `check`
   */
  async refusals(schemas: readonly SchemaOf[]): Promise<(string | null)[]> {
    const refusals: (string | null)[] = []
    const pending = schemas.entries()
    const checkPending = async () => {
      for (const [index, schema] of pending) refusals[index] = await this.check(schema).then(() => null, refusalMessage)
    }
    await Promise.all(Array.from({ length: CONCURRENCY }, checkPending))
    return refusals
  }

  /** Whether the schema was accepted before. @throws SchemaError for a refused or too large schema */
  #isAccepted({ text }: SchemaOf, key: string): boolean {
    if (Buffer.byteLength(text) > MAX_SCHEMA_BYTES) throw new SchemaError('must be at most 64 KiB')
    const cached = this.#schemas.get(key)
    if (cached && cached.refused !== null) throw new SchemaError(cached.refused)
    return cached !== undefined
  }

  /** Checks the first values, or only the schema without any values. @throws SchemaError, SERVICE_NOT_READY */
  async #run(
    schema: SchemaOf,
    key: string,
    values: readonly string[],
    options: CheckOptions,
  ): Promise<SchemaProblem[][]> {
    const { project, text } = schema
    const length = values.reduce((sum, value) => sum + value.length, text.length)
    const outcome = await this.#threads.run({ task, project, key, input: { ...schema, values }, length }, options)
    const refused = refusalReason(outcome, values)
    if (refused !== null) {
      this.#schemas.set(key, { refused })
      throw new SchemaError(refused)
    }
    if ('broke' in outcome)
      return [
        [outcome.broke === 'time' ? timeoutProblem() : noVerdictProblem('memory', 'takes too much memory to check')],
      ]
    this.#schemas.set(key, { refused: null })
    return 'problems' in outcome.output ? outcome.output.problems : []
  }
}

/** Returns the reason for which the outcome of a job refuses the schema, null if it does not. */
function refusalReason(outcome: Outcome, values: readonly string[]): string | null {
  if ('output' in outcome) return 'refused' in outcome.output ? outcome.output.refused : null
  if (values.length > 0) return null
  return outcome.broke === 'time' ? 'takes too long to compile' : 'takes too much memory to compile'
}

/** Returns a schema whose formats are annotations and whose unknown keywords are ignored. */
export const lenientSchema = (project: string, schema: unknown): SchemaOf => ({
  project,
  text: JSON.stringify(schema),
  rules: { strict: false },
})

const keyOf = ({ project, text, rules }: SchemaOf): string =>
  `${project} ${rules.strict} ${hash('sha256', text, 'base64')}`

function refusalMessage(error: unknown): string {
  if (!(error instanceof SchemaError)) throw error
  return error.message
}

/** Schema checks of a process. */
export const schemaChecks = sharedSingleton(services => new SchemaChecks(threads(services)))
