import type { Config } from '#core/base/config.ts'
import type { Logger } from '#core/base/log.ts'
import type { Pool } from '#core/db/pool.ts'
import { createEgress } from '#core/net/egress.ts'
import { deadLetterQueue, queues as declared, openQueues, type QueueStats } from '#core/queues/queue.ts'
import { HOME } from '#core/services/cell.ts'
import type { Check } from './output.ts'
import { countBrowserKeys, listLiteralAddresses, listQueueNames } from './store.ts'

const LATE_SECONDS = 60

/** Lists records whose address the egress rule blocks, judged without a lookup. */
export async function checkAddresses(config: Config, pool: Pool): Promise<Check> {
  const name = 'addresses'
  const egress = createEgress({ allowHosts: config.EGRESS_ALLOW_HOSTS, resolve: async () => [] })
  const stored = await listLiteralAddresses(pool)
  const blocked = [...new Set(stored.flatMap(({ id, address }) => (egress.refusal(address) ? id : [])))]
  await egress.close()
  if (blocked.length === 0)
    return { name, status: 'ok', detail: 'no webhook, tool or provider has an address that the egress rule blocks' }
  const ids = `${blocked.slice(0, 10).join(', ')}${blocked.length > 10 ? ', ...' : ''}`
  return {
    name,
    status: 'warn',
    detail: `${blocked.length} record(s) with an address that the egress rule blocks, which is never called: ${ids}`,
    fix: 'Correct the addresses, or allow their hosts in EGRESS_ALLOW_HOSTS.',
  }
}

/** Checks that browsers have sent no key. */
export async function checkBrowserKeys(pool: Pool): Promise<Check> {
  const name = 'keys in browsers'
  const count = await countBrowserKeys(pool)
  if (count === 0) return { name, status: 'ok', detail: 'no key was sent by a browser in the last seven days' }
  return {
    name,
    status: 'warn',
    detail: `${count} key(s) were sent by browsers in the last seven days`,
    fix: 'Issue tokens of end users to pages (docs/end-users.md), and delete these keys; the log lists their IDs.',
  }
}

/** Checks the queues of a cell, `home` or another: that they exist, are not late and have no dead letters. */
export async function checkQueues(databaseUrl: string, pool: Pool, log: Logger, cell: string): Promise<Check[]> {
  const present = new Set(await listQueueNames(pool))
  const missing = declared
    .all()
    .flatMap(({ name }) => [name, deadLetterQueue(name)])
    .filter(name => !present.has(name))
  if (missing.length > 0)
    return [{ name: 'queues', status: 'fail', detail: `missing: ${missing.join(', ')}`, fix: 'Run muster migrate.' }]
  const queues = await openQueues({
    databaseUrl,
    connections: 1,
    notifier: { notify: () => {} },
    log,
  })
  try {
    const stats = await queues.stats()
    const sum = (key: 'waiting' | 'delayed' | 'active' | 'dead') => stats.reduce((total, each) => total + each[key], 0)
    const checks: Check[] = [
      {
        name: 'queues',
        status: 'ok',
        detail: `${stats.length} queues: ${sum('waiting')} messages waiting, ${sum('delayed')} delayed, ${sum('active')} active`,
      },
    ]
    for (const late of stats.filter(each => each.oldest_seconds > LATE_SECONDS)) checks.push(warnLateQueue(late))
    const dead = stats.filter(each => each.dead > 0)
    if (dead.length > 0)
      checks.push({
        name: 'dead letters',
        status: 'warn',
        detail: dead.map(each => `${each.queue} ${each.dead}`).join(', '),
        fix: `Run muster reprocess dead-letters list${cell === HOME.name ? '' : ` --cell ${cell}`} to see them, replay to retry them.`,
      })
    return checks
  } finally {
    await queues.close()
  }
}

const warnLateQueue = ({ queue, waiting, oldest_seconds }: QueueStats): Check => ({
  name: 'queues',
  status: 'warn',
  detail: `${queue}: ${waiting} waiting, the oldest for ${Math.round(oldest_seconds)} s`,
  fix: `Start more workers: npm run worker ${declared.get(queue).concern}`.trimEnd(),
})
