import { principalRecord } from '#core/iam/caller.ts'
import type { Cloneable } from '#identity/projects/clone.ts'
import { stepToolIds } from './check-pipeline.ts'
import { guardrailCopies } from './guardrail-gate.ts'
import { type Execute, type Mcp, type Pipeline, type ToolRow, toolKind } from './model.ts'
import { listProjectTools } from './store.ts'
import { holdsSecret, secretTexts } from './tokens.ts'

/** Copies tools without the fields that reference secrets, which remain in their project. */
export const toolCloning: Cloneable = {
  name: 'tools',
  async copy(tx, from, to, ids, by) {
    const rows = await listProjectTools(tx, from)
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
        pipeline: withoutStepSecrets(pipeline),
        step_tool_ids: null,
        author: principalRecord(by.caller),
      }
      const copy = await toolKind.insert(tx, values)
      ids.set(id, copy.id)
      copies.push(copy)
    }
    // Copies keep their guardrails. Guardrails may reference tools, so they are copied after the tools.
    await guardrailCopies.only()?.(tx, from, to, ids, by)
    for (const [index, copy] of copies.entries()) {
      const guardrail_ids = rows[index].guardrail_ids?.map(id => ids.get(id) as string) ?? null
      // Steps may reference tools that were created after the pipeline.
      const pipeline = copy.pipeline && withCopiedTools(copy.pipeline, ids)
      const references = {
        ...(pipeline && { pipeline, step_tool_ids: stepToolIds(pipeline) }),
        ...(guardrail_ids && { guardrail_ids }),
      }
      const updated = Object.keys(references).length > 0 ? await toolKind.update(tx, copy.id, references) : copy
      tx.emit(toolKind, 'created', updated)
    }
  },
}

type RequestConfig = { execute?: Execute | null; mcp?: Mcp | null }

export const withoutSecretsOf = ({ execute = null, mcp = null }: RequestConfig) => ({
  execute: withoutSecrets(execute),
  mcp: withoutSecrets(mcp),
})

/** Returns an `execute` or `mcp` without the fields that reference secrets; null if its URL references one. */
function withoutSecrets<T extends Execute | Mcp>(sent: T | null): T | null {
  if (!sent || holdsSecret(sent.url)) return null
  const { headers, auth, sign: _secret, ...rest } = sent as Execute
  const openHeaders = Object.entries(headers ?? {}).filter(([, value]) => !holdsSecret(value))
  const secret = auth && secretTexts({ url: rest.url, auth }).some(holdsSecret)
  const optional = {
    ...(headers ? { headers: Object.fromEntries(openHeaders) } : {}),
    ...(auth && !secret ? { auth } : {}),
  }
  return { ...rest, ...optional } as T
}

const withoutStepSecrets = (pipeline: ToolRow['pipeline']): ToolRow['pipeline'] =>
  pipeline && {
    ...pipeline,
    steps: pipeline.steps?.map(step =>
      step.tool ? { ...step, tool: { ...step.tool, ...withoutSecretsOf(step.tool) } } : step,
    ),
  }

const withCopiedTools = (pipeline: Pipeline, ids: ReadonlyMap<string, string>): Pipeline => ({
  ...pipeline,
  steps: pipeline.steps?.map(step =>
    step.tool_id ? { ...step, tool_id: ids.get(step.tool_id) ?? step.tool_id } : step,
  ),
})
