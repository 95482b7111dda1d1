import { recordActivityInTx } from '#control/activity/record.ts'
import type { KindRow } from '#core/api/kind.ts'
import { raise } from '#core/base/errors.ts'
import { callTool, openCall } from '#execution/tools/call.ts'
import { lostCall } from '#execution/tools/metering.ts'
import { toolKind } from '#execution/tools/model.ts'
import { type ResolvedTool, resolveSharedTool } from '#execution/tools/resolve.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { requireUnpaused } from '#identity/projects/pause.ts'
import type { TriggerTarget } from './targets.ts'

const raiseNotAllowed = (message: string, field: string) =>
  raise('TRIGGER_ACTION_NOT_ALLOWED', { message, meta: { field } })

/** A firing of a tool is one call, made under the claim of the firing. */
export const toolTarget: TriggerTarget = {
  type: 'tool',
  kind: toolKind.name,
  action: 'tools:CallTool',
  async find(db, projectId, id) {
    const tool = await resolveSharedTool(db, projectId, id)
    // Presents a shared tool as a tool of the project; the call uses its own project.
    return tool && ({ ...tool, own_project_id: tool.project_id, project_id: projectId } as KindRow)
  },
  configure(target, { action }) {
    const { type } = target as ResolvedTool
    if (type === 'client') raiseNotAllowed('target_id must not be a client tool', 'target_id')
    const hasActions = type === 'platform' || type === 'mcp'
    if (hasActions && action === null) raiseNotAllowed(`action is required for ${type} tools`, 'action')
    if (!hasActions && action !== null) raiseNotAllowed(`action is not allowed for ${type} tools`, 'action')
  },
  // The call validates the arguments against the current schema of the tool.
  prepare: async () => null,
  async call(services, { id, trigger, target, authority, input, signal }) {
    const { project_id } = trigger
    await requireUnpaused(services.pool, project_id)
    const { own_project_id, ...tool } = target as ResolvedTool & { own_project_id: string }
    const call = openCall(services, {
      action: trigger.action,
      input,
      caller: () => callerForPrincipal(services, authority, project_id),
      idempotencyKey: id,
      metering: { source: 'trigger', record: id, trigger_id: trigger.id },
      signal,
    })
    return callTool(services, { ...tool, project_id: own_project_id }, call)
  },
  called(tx, { id, trigger, target }) {
    const { id: trigger_id, project_id, target_id, action } = trigger
    const { name: tool_name } = target as ResolvedTool & { own_project_id: string }
    recordActivityInTx(tx, {
      project_id,
      kind: 'action_executed',
      summary: `${tool_name} was called`,
      detail: { tool_id: target_id, tool_name, action: action ?? tool_name, trigger_id, trigger_firing_id: id },
      ref_id: target_id,
    })
  },
  async lost(db, { id: trigger_id, project_id, target_id, action }, { id, input }) {
    const tool = await resolveSharedTool(db, project_id, target_id)
    return tool && lostCall(tool, action, { source: 'trigger', record: id, trigger_id }, input)
  },
}
