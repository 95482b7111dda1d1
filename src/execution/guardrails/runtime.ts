import { extensionPoint } from '#core/base/declarations.ts'
import type { Services } from '#core/base/services.ts'
import { isTransient } from '#core/db/database-errors.ts'
import type { GateRequest } from '../tools/guardrail-gate.ts'

/** Call that `runtime.*` values describe. */
export type RuntimeSubject = Pick<GateRequest, 'project_id' | 'agent' | 'run'> & {
  tool: { id: string | null; name: string } | null
  action: string | null
}

type Value = string | number | null

const CALL_VALUES: Record<string, (call: RuntimeSubject) => Value> = {
  'runtime.action': ({ action }) => action,
  'runtime.tool.id': ({ tool }) => tool?.id ?? null,
  'runtime.tool.name': ({ tool }) => tool?.name ?? null,
  'runtime.agent.id': ({ agent }) => agent?.id ?? null,
  'runtime.project.id': ({ project_id }) => project_id,
  'runtime.orchestration_run.node_attempt': ({ run }) => run?.node_attempt ?? null,
}

/** Values that runtime readers provide; null without a reader. */
const MEASURED_KEYS = [
  'runtime.orchestration_run.tool_calls',
  'runtime.activity.actions_1h',
  'runtime.activity.actions_24h',
  'runtime.usage.cost_usd_1h',
  'runtime.usage.cost_usd_24h',
  'runtime.usage.cost_usd_7d',
  'runtime.usage.cost_usd_30d',
  'runtime.usage.tokens_24h',
  'runtime.usage.tokens_30d',
  'runtime.usage.orchestration_run_tokens',
  'runtime.usage.orchestration_run_cost_usd',
]

export const RUNTIME_KEYS: readonly string[] = [...Object.keys(CALL_VALUES), ...MEASURED_KEYS]

/** Reader of measured values, called for each call whose rules read one of its keys. */
export type RuntimeReader = {
  keys: readonly string[]
  read: (services: Services, call: RuntimeSubject, keys: readonly string[]) => Promise<Record<string, Value>>
}

export const runtimeReaders = extensionPoint<RuntimeReader>('runtime values of guardrails')

/** Returns the runtime values at the given paths as an object for expressions. A value that cannot be read is null. */
export async function readRuntime(services: Services, call: RuntimeSubject, paths: Iterable<string>): Promise<object> {
  const requested = [...paths].filter(path => RUNTIME_KEYS.includes(path))
  const root: Record<string, unknown> = {}
  const setValue = (path: string, value: Value) => {
    const segments = path.split('.').slice(1)
    const last = segments.pop() as string
    const holder = segments.reduce<Record<string, unknown>>((at, name) => (at[name] ??= {}) as never, root)
    holder[last] = value
  }
  for (const path of requested) setValue(path, CALL_VALUES[path]?.(call) ?? null)
  for (const { keys, read } of runtimeReaders.all()) {
    const readable = requested.filter(path => keys.includes(path))
    if (readable.length === 0) continue
    try {
      for (const [path, value] of Object.entries(await read(services, call, readable))) setValue(path, value)
    } catch (error) {
      if (isTransient(error)) throw error
      services.log.warn({ err: error, project_id: call.project_id, keys: readable }, 'runtime values read failed')
    }
  }
  return root
}
