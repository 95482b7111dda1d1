import { isFullyUnpriced, type SumsRow, usedByRun, usedWithin } from '#control/usage/sums.ts'
import type { Services } from '#core/base/services.ts'
import type { GateRequest } from '../tools/guardrail-gate.ts'

/** Call that `runtime.*` values describe. */
export type RuntimeSubject = Pick<GateRequest, 'project_id' | 'agent' | 'run'> & {
  tool: { id: string | null; name: string } | null
  action: string | null
}

export type RuntimeValue = string | number | null

/** Reader of measured values; called for each call whose rules read one of its keys. */
export type RuntimeReader = {
  keys: readonly string[]
  read: (services: Services, call: RuntimeSubject, keys: readonly string[]) => Promise<Record<string, RuntimeValue>>
}

const HOUR_MS = 3_600_000

const HOURS: Record<string, number> = { '1h': 1, '24h': 24, '7d': 7 * 24, '30d': 30 * 24 }

/** Returns the cost of usage; null if none of it has a price. */
const cost = (used: SumsRow): number | null => (isFullyUnpriced(used) ? null : used.cost_usd)

/** Measured project values: meter (null for all), reader and time spans. */
const PROJECT_VALUES: Record<
  string,
  { meter: string | null; read: (used: SumsRow) => number | null; spans: string[] }
> = {
  'runtime.usage.cost_usd': { meter: null, read: cost, spans: ['1h', '24h', '7d', '30d'] },
  'runtime.usage.tokens': { meter: null, read: ({ tokens }) => tokens, spans: ['24h', '30d'] },
  'runtime.activity.actions': { meter: 'tool_execution', read: ({ events }) => events, spans: ['1h', '24h'] },
}

/** Measured values of the run that a call belongs to. */
const RUN_VALUES: Record<string, (used: Awaited<ReturnType<typeof usedByRun>>) => number | null> = {
  'runtime.usage.orchestration_run_tokens': ({ tokens }) => tokens,
  'runtime.usage.orchestration_run_cost_usd': used => (isFullyUnpriced(used) ? null : used.cost_usd),
  'runtime.orchestration_run.tool_calls': ({ tool_calls }) => tool_calls,
}

/** Reads the usage of the run of a call in one statement; no values outside of runs. */
export const runValues: RuntimeReader = {
  keys: Object.keys(RUN_VALUES),
  async read({ pool }, { project_id, run }, keys) {
    if (!run) return {}
    const used = await usedByRun(pool, project_id, run.orchestration_run_id)
    return Object.fromEntries(keys.map(key => [key, RUN_VALUES[key](used)]))
  },
}

const MEASURES = Object.entries(PROJECT_VALUES).flatMap(([name, { meter, read, spans }]) =>
  spans.map(span => ({ key: `${name}_${span}`, meter, read, hours: HOURS[span] })),
)

/** Reads the recent usage of the project: one statement for values over all meters, one for tool calls. */
export const usageValues: RuntimeReader = {
  keys: MEASURES.map(({ key }) => key),
  async read({ pool, clock }, { project_id }, keys) {
    const now = clock.now().getTime()
    const requested = MEASURES.filter(({ key }) => keys.includes(key))
    const values: Record<string, number | null> = {}
    for (const meter of new Set(requested.map(value => value.meter))) {
      const measures = requested.filter(value => value.meter === meter)
      const spans = measures.map(({ hours }) => new Date(now - hours * HOUR_MS))
      const used = await usedWithin(pool, project_id, spans, meter)
      for (const [index, { key, read }] of measures.entries()) values[key] = read(used[index])
    }
    return values
  },
}
