import { principalRecord } from '../../core/iam/caller.ts'
import type { Cloneable } from '../../identity/projects/clone.ts'
import { stepToolIds } from './check-pipeline.ts'
import { guardrailCopies } from './guardrail-gate.ts'
import { type Execute, type Mcp, type Pipeline, type ToolRow, toolKind } from './model.ts'
import { toolsOf } from './store.ts'
import { holdsSecret, secretTexts } from './tokens.ts'

/** Tools are copied without what names secrets, which stay in their project. */
export const toolCloning: Cloneable = {
  name: 'tools',
  async copy(tx, from, to, ids, by) {
    const rows = await toolsOf(tx, from)
    const copies: ToolRow[] = []
    for (const row of rows) {
      const {
        id,
        secret_ids: _secrets,
        guardrail_ids: _guardrails,
        created_at: _created,
        updated_at: _updated,
        pipeline,
        ...tool
      } = row
      const values = {
        ...tool,
        ...withoutSecretsOf(tool),
        project_id: to,
        pipeline: withOwn(pipeline),
        step_tool_ids: null,
        author: principalRecord(by.caller),
      }
      const copy = await toolKind.insert(tx, values)
      ids.set(id, copy.id)
      copies.push(copy)
    }
    // A copy is not without the guardrails of its original. They may name tools, so they are made after them.
    await guardrailCopies.only()?.(tx, from, to, ids, by)
    for (const [index, copy] of copies.entries()) {
      const guardrail_ids = rows[index].guardrail_ids?.map(id => ids.get(id) as string) ?? null
      // Steps may name tools that were made later than their pipeline.
      const pipeline = copy.pipeline && renamed(copy.pipeline, ids)
      const named = {
        ...(pipeline && { pipeline, step_tool_ids: stepToolIds(pipeline) }),
        ...(guardrail_ids && { guardrail_ids }),
      }
      const made = Object.keys(named).length > 0 ? await toolKind.update(tx, copy.id, named) : copy
      tx.emit(toolKind, 'created', made)
    }
  },
}

type Sending = { execute?: Execute | null; mcp?: Mcp | null }

export const withoutSecretsOf = ({ execute = null, mcp = null }: Sending) => ({
  execute: withoutSecrets(execute),
  mcp: withoutSecrets(mcp),
})

/** An `execute` or `mcp` that needs no secret; null where its address does. */
function withoutSecrets<T extends Execute | Mcp>(sent: T | null): T | null {
  if (!sent || holdsSecret(sent.url)) return null
  const { headers, auth, sign: _secret, ...rest } = sent as Execute
  const kept = Object.entries(headers ?? {}).filter(([, value]) => !holdsSecret(value))
  const secret = auth && secretTexts({ url: rest.url, auth }).some(holdsSecret)
  const own = { ...(headers ? { headers: Object.fromEntries(kept) } : {}), ...(auth && !secret ? { auth } : {}) }
  return { ...rest, ...own } as T
}

const withOwn = (pipeline: ToolRow['pipeline']): ToolRow['pipeline'] =>
  pipeline && {
    ...pipeline,
    steps: pipeline.steps?.map(step =>
      step.tool ? { ...step, tool: { ...step.tool, ...withoutSecretsOf(step.tool) } } : step,
    ),
  }

const renamed = (pipeline: Pipeline, ids: ReadonlyMap<string, string>): Pipeline => ({
  ...pipeline,
  steps: pipeline.steps?.map(step =>
    step.tool_id ? { ...step, tool_id: ids.get(step.tool_id) ?? step.tool_id } : step,
  ),
})
