import { generationKind } from '#execution/generations/model.ts'
import { approvalDesk, type Proposal } from '#execution/generations/tools/approval-desk.ts'
import type { TestApp } from './app.ts'

/** Files what a turn proposes, as the loop of turns does when a guardrail sends a call to a person. */
export async function propose(
  app: Pick<TestApp, 'inCellOf'>,
  generationId: string,
  tool: { id: string | null; name: string; type?: string },
  args: Record<string, unknown>,
  more: Partial<Proposal> = {},
): Promise<{ id: string; expires_at: string }> {
  return app.inCellOf(generationId, async services => {
    const generation = await generationKind.find(services.pool, generationId)
    const desk = approvalDesk.only()
    if (!generation || !desk) throw new Error('the turn does not exist, or no module files approvals')
    return desk.file(services, {
      generation,
      tool: { type: 'http', ...tool },
      action: tool.name,
      args,
      reasoning: 'because',
      evidence: { seen: true },
      predicted_impact: 'none',
      policy_version: 'guard_1@1',
      expires_in: 3600,
      forbid_self_approval: false,
      approver: 'operator',
      end_user_arguments: [],
      tool_context: null,
      guardrail_context: null,
      ...more,
    })
  })
}
