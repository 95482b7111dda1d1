import type { DeadLetter } from '#core/queues/queue.ts'
import { queues as declared } from '#core/queues/queue.ts'
import { withCellServices } from './cell-services.ts'
import { CommandError, print, printJson, printProgress, table } from './output.ts'
import type { ReprocessFilters } from './reprocess.ts'

const MAX_LETTERS = 100_000
const BATCH = 500

function requireQueue(queue: string | undefined): void {
  if (queue !== undefined && !declared.find(queue))
    throw new CommandError(
      `queue ${queue} not found`,
      `Queues: ${declared
        .all()
        .map(({ name }) => name)
        .sort()
        .join(', ')}`,
    )
}

/** Returns the first line of the error of a dead letter. */
function errorLine({ error }: DeadLetter): string {
  const text = (error as { message?: unknown } | null)?.message ?? error
  return (typeof text === 'string' ? text : (JSON.stringify(text) ?? '')).split('\n')[0].slice(0, 100)
}

/** `muster reprocess dead-letters list`. */
export const listDeadLetters = (options: {
  data: string
  cell: string
  queue?: string
  limit?: number
  json?: boolean
}): Promise<void> =>
  withCellServices(options, async ({ queues }) => {
    requireQueue(options.queue)
    const letters = await queues.deadLetters.list({ queue: options.queue, limit: options.limit })
    if (options.json) return printJson(letters)
    const rows = letters.map(letter => [
      letter.id,
      letter.queue,
      letter.attempts,
      new Date(letter.died_at).toISOString(),
      errorLine(letter),
    ])
    print(table(['id', 'queue', 'attempts', 'died at', 'error'], rows, 'no dead letters'))
  })

/**
 * `muster reprocess dead-letters inspect <id>`: prints a dead letter as JSON.
 * @throws CommandError if it does not exist
 */
export const inspectDeadLetter = (id: string, options: { data: string; cell: string }): Promise<void> =>
  withCellServices(options, async ({ queues }) => {
    const letter = isUuid(id) ? await queues.deadLetters.inspect(id) : null
    if (!letter) throw new CommandError(`dead letter ${id} not found`)
    printJson(letter)
  })

/**
 * `muster reprocess dead-letters replay`: moves dead letters back to their queues, with the full number of attempts.
 */
export const replayDeadLetters = (options: ReprocessFilters & { queue?: string }): Promise<void> =>
  withCellServices(options, async ({ queues }) => {
    requireQueue(options.queue)
    const { project, from, to, id: ids } = options
    const letters = await queues.deadLetters.list({ queue: options.queue, limit: MAX_LETTERS })
    const selected = letters
      .filter(
        letter =>
          (ids.length === 0 || ids.includes(letter.id)) &&
          (project === undefined || (letter.data as { project_id?: string }).project_id === project) &&
          (from === undefined || new Date(letter.died_at) >= from) &&
          (to === undefined || new Date(letter.died_at) <= to),
      )
      .reverse()
      .slice(0, options.limit)
    const byQueue = Object.entries(Object.groupBy(selected, letter => letter.queue)) as [string, DeadLetter[]][]
    const replayed: Record<string, number> = {}
    for (const [queue, group] of options.dryRun ? [] : byQueue) {
      replayed[queue] = 0
      for (let start = 0; start < group.length; start += BATCH) {
        const batch = group.slice(start, start + BATCH).map(letter => letter.id)
        replayed[queue] += await queues.deadLetters.replay({ queue, ids: batch })
        printProgress(`${queue}: ${replayed[queue]} of ${group.length} replayed`)
      }
    }
    const total = Object.values(replayed).reduce((sum, count) => sum + count, 0)
    if (options.json)
      printJson({ found: selected.length, replayed: total, dry_run: options.dryRun === true, by_queue: replayed })
    else if (options.dryRun) print(`${selected.length} dead letters would be replayed`)
    else print(`${total} dead letters replayed`)
  })

const isUuid = (text: string): boolean => /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text)
