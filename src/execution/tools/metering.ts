import { randomUUID } from 'node:crypto'
import { recordUsageLater, type UsageDraft } from '../../control/usage/meter.ts'
import type { Services } from '../../core/process/services.ts'
import { type Callable, callingProject, type ToolCall } from './call-model.ts'

/** Meters a call that was made, whatever became of it. Prices of the tool see what it answered, before any mapping. */
export function meterCall(
  services: Services,
  tool: Callable,
  action: string | null,
  { metering }: Pick<ToolCall, 'metering'>,
  call: NonNullable<UsageDraft['call']>,
): void {
  if (!metering) return
  const { source, record, add, ...attribution } = metering
  const draft: UsageDraft = {
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
  if (add) add(draft)
  else recordUsageLater(services, [draft])
}
