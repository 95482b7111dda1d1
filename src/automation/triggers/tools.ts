import { recordActivityInTx } from '../../control/activity/record.ts'
import { raise } from '../../core/api/errors.ts'
import type { KindRow } from '../../core/api/kind.ts'
import { callTool, openCall } from '../../execution/tools/call.ts'
import { lostCall } from '../../execution/tools/metering.ts'
import { toolKind } from '../../execution/tools/model.ts'
import { type ResolvedTool, resolveSharedTool } from '../../execution/tools/resolve.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import { requireUnpaused } from '../../identity/projects/pause.ts'
import type { TriggerTarget } from './targets.ts'

/** Tools as targets: a firing is one call, made by the worker that has it. */

const notAllowed = (message: string, field: string) => raise('TRIGGER_ACTION_NOT_ALLOWED', { message, meta: { field } })

export const toolTarget: TriggerTarget = {
  type: 'tool',
  kind: toolKind.name,
  action: 'tools:CallTool',
  async find(db, projectId, id) {
    const tool = await resolveSharedTool(db, projectId, id)
    // A shared one is called as if it were the project's.
    return tool && ({ ...tool, own_project_id: tool.project_id, project_id: projectId } as KindRow)
  },
  configure(target, { action }) {
    const { type } = target as ResolvedTool
    if (type === 'client') notAllowed('A tool that clients call is no target', 'target_id')
    const named = type === 'platform' || type === 'mcp'
    if (named && action === null) notAllowed(`A ${type} tool needs an action`, 'action')
    if (!named && action !== null) notAllowed(`An action does not go with a tool of type ${type}`, 'action')
  },
  // The schema of the arguments is that of the tool at the call.
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
