import type { Cloneable } from '../../identity/projects/clone.ts'
import { type Execute, type Mcp, type Pipeline, type ToolRow, toolKind } from './model.ts'
import { toolsOf } from './store.ts'
import { holdsSecret, secretTexts } from './tokens.ts'

/** Tools are copied without what names secrets, which stay in their project. */
export const toolCloning: Cloneable = {
  name: 'tools',
  async copy(tx, from, to, ids) {
    const rows = await toolsOf(tx, from)
    const copies: { id: string; pipeline: Pipeline }[] = []
    for (const row of rows) {
      const { id, secret_ids: _secrets, created_at: _created, updated_at: _updated, pipeline, ...tool } = row
      const values = { ...tool, ...withoutSecretsOf(tool), project_id: to, pipeline: withOwn(pipeline) }
      const copy = await toolKind.insert(tx, values)
      ids.set(id, copy.id)
      if (values.pipeline) copies.push({ id: copy.id, pipeline: values.pipeline })
      else tx.emit(toolKind, 'created', copy)
    }
    // Steps may name tools that were made later than their pipeline.
    for (const { id, pipeline } of copies)
      tx.emit(toolKind, 'created', await toolKind.update(tx, id, { pipeline: renamed(pipeline, ids) }))
  },
}

type Sending = { execute?: Execute | null; mcp?: Mcp | null }

export const withoutSecretsOf = ({ execute = null, mcp = null }: Sending) => ({
  execute: withoutSecrets(execute),
  mcp: withoutSecrets(mcp),
})

/** An `execute` or `mcp` that needs no secret; null where its address does. */
export function withoutSecrets<T extends Execute | Mcp>(sent: T | null): T | null {
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
