import { randomUUID } from 'node:crypto'
import { recordUsageLater, type UsageDraft } from '../../control/usage/meter.ts'
import type { Services } from '../../core/process/services.ts'
import { type Callable, type CallMetering, callingProject, type ToolCall } from './call-types.ts'

/** As much of a tool as its use names. `id` is null for a tool that is not known any more. */
type Named = Pick<Callable, 'id' | 'name' | 'project_id' | 'consumer'>

/** The use of a call. Prices of the tool see what it answered, before any mapping. */
function draftOf(
  tool: Named,
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

/** Meters a call that was made, whatever became of it. */
export function meterToolCall(
  services: Services,
  tool: Callable,
  action: string | null,
  { metering }: Pick<ToolCall, 'metering'>,
  call: NonNullable<UsageDraft['call']>,
): void {
  if (!metering) return
  const draft = draftOf(tool, action, metering, call)
  if (metering.add) metering.add(draft)
  else recordUsageLater(services, [draft])
}

/**
 * The use of a call that was about to be made when its worker was lost, and that is not made again: it may have been made, and
 * counts as made. Under the key of the call, so that a worker that was only late counts it once.
 */
export const lostCall = (
  tool: Named,
  action: string | null,
  metering: CallMetering & { record: string },
  input: unknown,
): UsageDraft => draftOf(tool, action, metering, { input, output: null })
