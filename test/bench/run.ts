import { startServer } from '../support/postgres.ts'
import type { Row } from './rows.ts'

const missed = ({ value, target }: Row): boolean => {
  const [, relation, bound] = /^(>=|<=|<|>)\s*([\d.]+)$/.exec(target ?? '') ?? []
  if (!relation) return false
  return !{
    '>=': value >= Number(bound),
    '<=': value <= Number(bound),
    '<': value < Number(bound),
    '>': value > Number(bound),
  }[relation]
}

/**
 * `npm run bench [names] [-- --fast]`: every benchmark, or the named ones. Commits wait for the disk, as commits of a
 * deployment do; with `--fast` they do not, and amounts are smaller (fast.ts). All numbers of a run come from one machine at one time; ratios are against a
 * floor measured next to them.
 */
const all = {
  http: async () => (await import('./http.ts')).run(),
  commits: async () => (await import('./commits.ts')).run(),
  lists: async () => (await import('./lists.ts')).run(),
  cells: async () => (await import('./cells.ts')).run(),
  activity: async () => (await import('./activity.ts')).run(),
  files: async () => (await import('./files.ts')).run(),
  turns: async () => (await import('./turns.ts')).run(),
  tools: async () => (await import('./tools.ts')).run(),
  mcp: async () => (await import('./mcp.ts')).run(),
  usage: async () => (await import('./usage.ts')).run(),
  queue: async () => (await import('./queue.ts')).run(),
  fairness: async () => (await import('./fairness.ts')).run(),
  deliveries: async () => (await import('./deliveries.ts')).run(),
  knowledge: async () => [
    ...(await (await import('./knowledge.ts')).run()),
    ...(await (await import('./knowledge-languages.ts')).run()),
  ],
  'knowledge-languages': async () => (await import('./knowledge-languages.ts')).run(),
  ingestion: async () => (await import('./ingestion.ts')).run(),
  memory: async () => (await import('./memory.ts')).run(),
  facts: async () => (await import('./facts.ts')).run(),
  'end-users': async () => (await import('./end-users.ts')).run(),
  fronts: async () => (await import('./fronts.ts')).run(),
  streams: async () => (await import('./streams.ts')).run(),
  idle: async () => (await import('./idle.ts')).run(),
  'usage-reports': async () => (await import('./usage-reports.ts')).run(),
  orchestration: async () => [
    ...(await (await import('./orchestration.ts')).run()),
    ...(await (await import('./waiting-runs.ts')).run()),
    ...(await (await import('./cancelled-trees.ts')).run()),
  ],
  'cancelled-trees': async () => (await import('./cancelled-trees.ts')).run(),
  work: async () => [...(await (await import('./work.ts')).run()), ...(await (await import('./work-evals.ts')).run())],
  oauth: async () => (await import('./oauth.ts')).run(),
  formations: async () => (await import('./formations.ts')).run(),
  cli: async () => (await import('./cli.ts')).run(),
  console: async () => (await import('./console.ts')).run(),
  docs: async () => (await import('./docs.ts')).run(),
  telemetry: async () => (await import('./telemetry.ts')).run(),
  growth: async () => (await import('./growth.ts')).run(),
  migrations: async () => (await import('./migrations.ts')).run(),
  months: async () => (await import('./months.ts')).run(),
  path: async () => (await import('./path.ts')).run({ list: process.argv.includes('--list') }),
}
const fast = process.argv.includes('--fast')
const names = process.argv.slice(2).filter(name => !name.startsWith('--'))
for (const name of names) {
  if (!(name in all)) {
    console.error(`no benchmark ${name}; there are ${Object.keys(all).join(', ')}`)
    process.exit(2)
  }
}
const server = process.env.TEST_DATABASE_URL ? null : await startServer({ flushes: !fast })
if (server) process.env.TEST_DATABASE_URL = server.url
let isMissed = false
try {
  for (const [name, run] of Object.entries(all)) {
    if (names.length > 0 && !names.includes(name)) continue
    console.log(`\n${name}`)
    const rows: Row[] = await run()
    isMissed ||= rows.some(row => row.isCount && missed(row))
    console.table(
      rows.map(row => ({
        what: row.what,
        value: `${row.value} ${row.unit}`.trim(),
        target: row.target ?? '',
        met: row.target ? (missed(row) ? 'MISSED' : 'yes') : '',
        note: row.note ?? '',
      })),
    )
  }
} finally {
  await server?.stop()
}
process.exit(isMissed ? 1 : 0)
