import type { Services } from '#core/base/services.ts'
import { isTransient } from '#core/db/database-errors.ts'
import { type RuntimeReader, type RuntimeSubject, type RuntimeValue, runValues, usageValues } from './usage.ts'

const CALL_VALUES: Record<string, (call: RuntimeSubject) => RuntimeValue> = {
  'runtime.action': ({ action }) => action,
  'runtime.tool.id': ({ tool }) => tool?.id ?? null,
  'runtime.tool.name': ({ tool }) => tool?.name ?? null,
  'runtime.agent.id': ({ agent }) => agent?.id ?? null,
  'runtime.project.id': ({ project_id }) => project_id,
  'runtime.orchestration_run.node_attempt': ({ run }) => run?.node_attempt ?? null,
}

/** Readers of measured values. */
const READERS: readonly RuntimeReader[] = [usageValues, runValues]

export const RUNTIME_KEYS: readonly string[] = [...Object.keys(CALL_VALUES), ...READERS.flatMap(({ keys }) => keys)]

/** Returns the runtime values at the given paths as an object for expressions. A value that cannot be read is null. */
export async function readRuntime(services: Services, call: RuntimeSubject, paths: Iterable<string>): Promise<object> {
  const requested = [...paths].filter(path => RUNTIME_KEYS.includes(path))
  const root: Record<string, unknown> = {}
  const setValue = (path: string, value: RuntimeValue) => {
    const segments = path.split('.').slice(1)
    const last = segments.pop() as string
    const holder = segments.reduce<Record<string, unknown>>((at, name) => (at[name] ??= {}) as never, root)
    holder[last] = value
  }
  for (const path of requested) setValue(path, CALL_VALUES[path]?.(call) ?? null)
  for (const { keys, read } of READERS) {
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
