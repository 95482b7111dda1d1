import { isTransient } from '../../core/db/database-errors.ts'
import { extensionPoint } from '../../core/declarations.ts'
import type { Services } from '../../core/process/services.ts'
import type { GateRequest } from '../tools/guardrail-gate.ts'

/** What `runtime.*` may read of the call itself. */
export type RuntimeSubject = Pick<GateRequest, 'project_id' | 'agent' | 'run'> & {
  tool: { id: string | null; name: string } | null
  action: string | null
}

type Value = string | number | null

const OF_CALL: Record<string, (call: RuntimeSubject) => Value> = {
  'runtime.action': ({ action }) => action,
  'runtime.tool.id': ({ tool }) => tool?.id ?? null,
  'runtime.tool.name': ({ tool }) => tool?.name ?? null,
  'runtime.agent.id': ({ agent }) => agent?.id ?? null,
  'runtime.project.id': ({ project_id }) => project_id,
  'runtime.orchestration_run.node_attempt': ({ run }) => run?.node_attempt ?? null,
}

/** What others measure; null as long as nobody does. */
const MEASURED = [
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

export const RUNTIME_KEYS: readonly string[] = [...Object.keys(OF_CALL), ...MEASURED]

/** Modules that measure some of the values: they are asked at each call that reads one. */
export type RuntimeReader = {
  keys: readonly string[]
  read: (services: Services, call: RuntimeSubject, keys: readonly string[]) => Promise<Record<string, Value>>
}

export const runtimeReaders = extensionPoint<RuntimeReader>('runtime values of guardrails')

/** The values that some paths read, as the object that expressions see. One that cannot be measured is null. */
export async function runtimeOf(services: Services, call: RuntimeSubject, paths: Iterable<string>): Promise<object> {
  const wanted = [...paths].filter(path => RUNTIME_KEYS.includes(path))
  const root: Record<string, unknown> = {}
  const put = (path: string, value: Value) => {
    const segments = path.split('.').slice(1)
    const last = segments.pop() as string
    const holder = segments.reduce<Record<string, unknown>>((at, name) => (at[name] ??= {}) as never, root)
    holder[last] = value
  }
  for (const path of wanted) put(path, OF_CALL[path]?.(call) ?? null)
  for (const { keys, read } of runtimeReaders.all()) {
    const theirs = wanted.filter(path => keys.includes(path))
    if (theirs.length === 0) continue
    try {
      for (const [path, value] of Object.entries(await read(services, call, theirs))) put(path, value)
    } catch (error) {
      if (isTransient(error)) throw error
      services.log.warn({ err: error, project_id: call.project_id, keys: theirs }, 'runtime values not read')
    }
  }
  return root
}
