import { isFullyUnpriced, type SumsRow, usedByRun, usedWithin } from '../../control/usage/sums.ts'
import type { RuntimeReader } from './runtime.ts'

const HOUR_MS = 3_600_000

const HOURS: Record<string, number> = { '1h': 1, '24h': 24, '7d': 7 * 24, '30d': 30 * 24 }

/** Nothing is known of what usage cost where none of it has a price. */
const cost = (used: SumsRow): number | null => (isFullyUnpriced(used) ? null : used.cost_usd)

/** What is measured, of events of one meter or of all, over how long. */
const MEASURED: Record<string, { meter: string | null; read: (used: SumsRow) => number | null; spans: string[] }> = {
  'runtime.usage.cost_usd': { meter: null, read: cost, spans: ['1h', '24h', '7d', '30d'] },
  'runtime.usage.tokens': { meter: null, read: ({ tokens }) => tokens, spans: ['24h', '30d'] },
  'runtime.activity.actions': { meter: 'tool_execution', read: ({ events }) => events, spans: ['1h', '24h'] },
}

/** What is measured of the run that a call is part of. */
const OF_RUN: Record<string, (used: Awaited<ReturnType<typeof usedByRun>>) => number | null> = {
  'runtime.usage.orchestration_run_tokens': ({ tokens }) => tokens,
  'runtime.usage.orchestration_run_cost_usd': used => (isFullyUnpriced(used) ? null : used.cost_usd),
  'runtime.orchestration_run.tool_calls': ({ tool_calls }) => tool_calls,
}

/** What the run of a call has used so far, in one statement; nothing is known of it outside of runs. */
export const runValues: RuntimeReader = {
  keys: Object.keys(OF_RUN),
  async read({ pool }, { project_id, run }, keys) {
    if (!run) return {}
    const used = await usedByRun(pool, project_id, run.orchestration_run_id)
    return Object.fromEntries(keys.map(key => [key, OF_RUN[key](used)]))
  },
}

const keyed = Object.entries(MEASURED).flatMap(([name, { meter, read, spans }]) =>
  spans.map(span => ({ key: `${name}_${span}`, meter, read, hours: HOURS[span] })),
)

/** What the project used in spans that end now: one statement for all values of its meters, one for those of tool calls. */
export const usageValues: RuntimeReader = {
  keys: keyed.map(({ key }) => key),
  async read({ pool, clock }, { project_id }, keys) {
    const now = clock.now().getTime()
    const asked = keyed.filter(({ key }) => keys.includes(key))
    const values: Record<string, number | null> = {}
    for (const meter of new Set(asked.map(value => value.meter))) {
      const of = asked.filter(value => value.meter === meter)
      const spans = of.map(({ hours }) => new Date(now - hours * HOUR_MS))
      const used = await usedWithin(pool, project_id, spans, meter)
      for (const [index, { key, read }] of of.entries()) values[key] = read(used[index])
    }
    return values
  },
}
