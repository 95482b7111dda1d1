import type { DeadLetter } from '../core/jobs/queue.ts'
import { queues as declared } from '../core/jobs/queue.ts'
import { withServices } from './environment.ts'
import { CommandError, print, printJson, printProgress, table } from './output.ts'
import type { ReprocessFilters } from './reprocess.ts'

const MAX_LETTERS = 100_000
const BATCH = 500

function checkQueue(queue: string | undefined): void {
  if (queue !== undefined && !declared.find(queue))
    throw new CommandError(
      `there is no queue ${queue}`,
      `Queues: ${declared
        .all()
        .map(({ name }) => name)
        .sort()
        .join(', ')}`,
    )
}

/** The first line of what a message failed with. */
function reason({ error }: DeadLetter): string {
  const text = (error as { message?: unknown } | null)?.message ?? error
  return (typeof text === 'string' ? text : (JSON.stringify(text) ?? '')).split('\n')[0].slice(0, 100)
}

/** `muster reprocess dead-letters list`. */
export const listDeadLetters = (options: {
  data: string
  queue?: string
  limit?: number
  json?: boolean
}): Promise<void> =>
  withServices(options.data, async ({ queues }) => {
    checkQueue(options.queue)
    const letters = await queues.deadLetters.list({ queue: options.queue, limit: options.limit })
    if (options.json) return printJson(letters)
    const rows = letters.map(letter => [
      letter.id,
      letter.queue,
      letter.attempts,
      new Date(letter.died_at).toISOString(),
      reason(letter),
    ])
    print(table(['id', 'queue', 'attempts', 'died at', 'error'], rows, 'there are no dead letters'))
  })

/** `muster reprocess dead-letters inspect <id>`: prints JSON. Raises CommandError for an id that names none. */
export const inspectDeadLetter = (id: string, { data }: { data: string }): Promise<void> =>
  withServices(data, async ({ queues }) => {
    const letter = isUuid(id) ? await queues.deadLetters.inspect(id) : null
    if (!letter) throw new CommandError(`there is no dead letter ${id}`)
    printJson(letter)
  })

/** `muster reprocess dead-letters replay`: what it sends again is tried from the start. */
export const replayDeadLetters = (options: ReprocessFilters & { queue?: string }): Promise<void> =>
  withServices(options.data, async ({ queues }) => {
    checkQueue(options.queue)
    const { project, from, to, id: ids } = options
    const letters = await queues.deadLetters.list({ queue: options.queue, limit: MAX_LETTERS })
    const chosen = letters
      .filter(
        letter =>
          (ids.length === 0 || ids.includes(letter.id)) &&
          (project === undefined || (letter.data as { project_id?: string }).project_id === project) &&
          (from === undefined || new Date(letter.died_at) >= from) &&
          (to === undefined || new Date(letter.died_at) <= to),
      )
      .reverse()
      .slice(0, options.limit)
    const byQueue = Object.entries(Object.groupBy(chosen, letter => letter.queue)) as [string, DeadLetter[]][]
    const replayed: Record<string, number> = {}
    for (const [queue, group] of options.dryRun ? [] : byQueue) {
      replayed[queue] = 0
      for (let start = 0; start < group.length; start += BATCH) {
        const batch = group.slice(start, start + BATCH).map(letter => letter.id)
        replayed[queue] += await queues.deadLetters.replay({ queue, ids: batch })
        printProgress(`${queue}: ${replayed[queue]} of ${group.length} sent again`)
      }
    }
    const total = Object.values(replayed).reduce((sum, count) => sum + count, 0)
    if (options.json)
      printJson({ found: chosen.length, replayed: total, dry_run: options.dryRun === true, by_queue: replayed })
    else if (options.dryRun) print(`${chosen.length} dead letters would be sent again`)
    else print(`${total} dead letters are sent again`)
  })

const isUuid = (text: string): boolean => /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text)
