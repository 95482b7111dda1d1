import os from 'node:os'
import type { PromiseReport } from './promises.ts'
import type { KindReport } from './reconcile.ts'

/** The report of a drill, as `--json` prints it. */
export type Report = {
  drill: string
  held: boolean
  started_at: string
  duration_seconds: number
  load_seconds: number
  machine: { cpus: number; cpu: string; memory_gib: number; platform: string; node: string; postgres: string | null }
  totals: { acknowledged: number; lost: number; doubled: number; longest_wait_ms: number }
  kinds: readonly KindReport[]
  promises: readonly PromiseReport[]
  timeline: readonly { at_seconds: number; text: string }[]
}

type Result = {
  drill: string
  startedAt: number
  seconds: number
  postgres: string | null
} & Pick<Report, 'kinds' | 'promises' | 'timeline'>

export function buildReport({ drill, startedAt, seconds, postgres, kinds, promises, timeline }: Result): Report {
  const sum = (of: (kind: KindReport) => number) => kinds.reduce((total, kind) => total + of(kind), 0)
  const cpus = os.cpus()
  return {
    drill,
    held: promises.every(({ held }) => held),
    started_at: new Date(startedAt).toISOString(),
    duration_seconds: Math.round((Date.now() - startedAt) / 1000),
    load_seconds: seconds,
    machine: {
      cpus: cpus.length,
      cpu: cpus[0]?.model ?? 'unknown',
      memory_gib: Math.round(os.totalmem() / 1024 ** 3),
      platform: `${os.platform()} ${os.arch()}`,
      node: process.version,
      postgres,
    },
    totals: {
      acknowledged: sum(({ acknowledged }) => acknowledged),
      lost: sum(({ lost }) => lost),
      doubled: sum(({ doubled }) => doubled),
      longest_wait_ms: Math.max(0, ...kinds.map(({ longest_wait_ms }) => longest_wait_ms)),
    },
    kinds,
    promises,
    timeline,
  }
}

/** Exit code of a drill: 0 if its promises held, else 1. */
export const exitCodeOf = ({ held }: Report): 0 | 1 => (held ? 0 : 1)

const seconds = (ms: number): string => (ms / 1000).toFixed(1)

const errorsOf = (errors: Record<string, number>): string =>
  Object.entries(errors)
    .toSorted()
    .map(([code, count]) => `${code} ${count}`)
    .join(', ') || 'none'

/** Formats a report as a page of Markdown. */
export function toMarkdown(report: Report): string {
  const { drill, held, machine, kinds, promises, timeline, totals } = report
  const postgres = machine.postgres ? `, PostgreSQL ${machine.postgres}` : ''
  return [
    `# Drill ${drill}: ${held ? 'promises held' : 'promises broken'}`,
    '',
    `${report.started_at.slice(0, 16).replace('T', ' ')} UTC, ${report.load_seconds} s of load, ${report.duration_seconds} s in total. ${machine.cpus} × ${machine.cpu}, ${machine.memory_gib} GiB, ${machine.platform}, Node ${machine.node}${postgres}.`,
    '',
    `${totals.acknowledged} acknowledged, ${totals.lost} lost, ${totals.doubled} doubled, longest wait ${seconds(totals.longest_wait_ms)} s.`,
    '',
    '| Work | Acknowledged | Lost | Doubled | Repeated calls | Longest answer, s | Longest wait, s | Errors |',
    '|---|---|---|---|---|---|---|---|',
    ...kinds.map(
      kind =>
        `| ${kind.kind} | ${kind.acknowledged} | ${kind.lost} | ${kind.doubled} | ${kind.repeated} | ${seconds(kind.longest_answer_ms)} | ${seconds(kind.longest_wait_ms)} | ${errorsOf(kind.errors)} |`,
    ),
    '',
    '| Promise | Held | Broken by |',
    '|---|---|---|',
    ...promises.map(({ name, held, broken_by }) => `| ${name} | ${held ? 'yes' : 'no'} | ${broken_by.join('; ')} |`),
    '',
    '| Second | Step |',
    '|---|---|',
    ...timeline.map(({ at_seconds, text }) => `| ${at_seconds.toFixed(1)} | ${text} |`),
    '',
  ].join('\n')
}
