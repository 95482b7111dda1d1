import { randomUUID } from 'node:crypto'
import { recordUsageLater, type UsageDraft } from '#control/usage/meter.ts'
import type { Services } from '#core/base/services.ts'
import { type Callable, type CallMetering, callingProject, type ToolCall } from './call-types.ts'

/** Fields of a tool that its usage records. `id` is null for a deleted tool. */
type MeteredTool = Pick<Callable, 'id' | 'name' | 'project_id' | 'consumer'>

/** Returns the usage of a call. Prices of the tool depend on its output before any mapping. */
function usageDraft(
  tool: MeteredTool,
  action: string | null,
  { source, record, add: _, ...attribution }: CallMetering,
  call: NonNullable<UsageDraft['call']>,
): UsageDraft {
  return {
    ...attribution,
    idempotency_key: `tool:${record ?? randomUUID()}`,
    project_id: callingProject(tool),
    meter_type: 'tool_execution',
    provider: 'platform',
    model: 'tool-call',
    tool_id: tool.id,
    tool_action: action ?? tool.name,
    source,
    publisher_project_id: tool.consumer ? tool.project_id : null,
    components: [{ component: 'tool_call', quantity: 1, unit: 'tool_call', billable: true }],
    call,
  }
}

/** Meters a call that was made, whatever its outcome. */
export function meterToolCall(
  services: Services,
  tool: Callable,
  action: string | null,
  { metering }: Pick<ToolCall, 'metering'>,
  call: NonNullable<UsageDraft['call']>,
): void {
  if (!metering) return
  const draft = usageDraft(tool, action, metering, call)
  if (metering.add) metering.add(draft)
  else recordUsageLater(services, [draft])
}

/**
 * Returns the usage of a call whose worker was lost and that is not repeated: it may have been made and is counted. It
 * has the key of the call, so a late worker does not count it twice.
 */
export const lostCall = (
  tool: MeteredTool,
  action: string | null,
  metering: CallMetering & { record: string },
  input: unknown,
): UsageDraft => usageDraft(tool, action, metering, { input, output: null })
