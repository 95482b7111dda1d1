import { AppError } from '../core/api/errors.ts'
import type { JsonObject } from '../core/api/flatten.ts'
import { type Operation, operations } from '../core/api/operation.ts'
import type { Caller } from '../core/iam/caller.ts'
import { callAs } from '../core/invoke/call.ts'
import { invoke } from '../core/invoke/invoke.ts'
import type { Services } from '../core/process/services.ts'
import { readResource } from './apply.ts'
import type { FormationRow, ReadOutputs } from './model.ts'
import type { Run } from './run.ts'
import { listFormationResources, type TrackedRow } from './store.ts'
import type { CompiledTemplate } from './template/compile.ts'
import { expressionOf, expressionsIn, namesIn, resolveValue, type TemplateScope } from './template/expressions.ts'
import { itemArguments } from './types/built-in.ts'
import { findType } from './types/find.ts'

/** Outputs of a template: what other systems read of a formation. */

type Outputs = Record<string, string | { no_echo: true }>

const scalar = (value: unknown): string | null =>
  typeof value === 'string' ? value : typeof value === 'number' || typeof value === 'boolean' ? String(value) : null

/**
 * The outputs of a template, in its order; one that is no text is left out. `once`: values for the answer of this operation
 * alone. A record is read with the rights of the caller.
 */
export async function outputsOf(
  run: Run,
  compiled: CompiledTemplate,
  of: ReadonlyMap<string, TrackedRow>,
  scope: TemplateScope,
): Promise<{ outputs: Outputs; read: ReadOutputs; once: Record<string, string> }> {
  const records = new Map<string, JsonObject | null>()
  const outputs: Outputs = {}
  const reads: ReadOutputs = {}
  const once: Record<string, string> = {}
  const recordOf = async (logicalId: string, tracked: TrackedRow): Promise<JsonObject | null> => {
    const known = records.get(logicalId)
    if (known !== undefined) return known
    const type = findType(run.services, tracked.resource_type)
    const id = tracked.physical_resource_id
    const record =
      !type || !id ? null : type.registered ? tracked.attributes : await readResource(run, type, id, tracked)
    records.set(logicalId, record)
    return record
  }
  for (const [name, value] of Object.entries(compiled.outputs)) {
    const expression = expressionOf(value)
    if (expression?.kind !== 'ref_attr') {
      if (tellsHidden(value, compiled)) {
        outputs[name] = { no_echo: true }
        continue
      }
      const resolved = resolveValue(value, scope)
      const text = resolved.unknown || resolved.nothing ? null : resolved.value
      if (typeof text === 'string') outputs[name] = text
      continue
    }
    const [logicalId, attribute] = expression.text.split('.', 2)
    const tracked = of.get(logicalId)
    if (!tracked) continue
    const type = findType(run.services, tracked.resource_type)
    const from = type && !type.registered ? type.declared.attributes[attribute] : undefined
    if (from && 'once' in from) {
      outputs[name] = { no_echo: true }
      const given = scalar(run.once.get(`${logicalId}.${attribute}`))
      if (given !== null) once[name] = given
    } else if (from) {
      outputs[name] = { no_echo: true }
      reads[name] = { resource: tracked.id, attribute }
    } else {
      const text = scalar((await recordOf(logicalId, tracked))?.[attribute])
      if (text !== null) outputs[name] = text
    }
  }
  return { outputs, read: reads, once }
}

/** What the value of a parameter that is not shown reads. */
export const HIDDEN = '***'

/** Whether a value would show that of a parameter with `no_echo`. */
const tellsHidden = (value: unknown, { parameters }: CompiledTemplate): boolean =>
  expressionsIn(value).some(({ expression: { kind, text } }) =>
    (kind === 'param' ? [text] : kind === 'sub' ? namesIn(text) : []).some(name => parameters.get(name)?.no_echo),
  )

/** The metadata of a template with its expressions resolved; what resolves to nothing is null. */
export function resolvedMetadata(compiled: CompiledTemplate, scope: TemplateScope): unknown {
  const { metadata } = compiled
  const walk = (value: unknown): unknown => {
    if (typeof value !== 'object' || value === null) return value
    if (expressionOf(value)) {
      if (tellsHidden(value, compiled)) return HIDDEN
      const { value: text, unknown, nothing } = resolveValue(value, scope)
      return unknown || nothing ? null : text
    }
    if (Array.isArray(value)) return value.map(walk)
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, walk(item)]))
  }
  return metadata === undefined ? null : walk(metadata)
}

/**
 * The outputs of a formation as a caller sees them: values that are kept nowhere are read by the operation that shows them,
 * where the caller may call it.
 */
export async function shownOutputs(
  services: Services,
  caller: Caller,
  { id, outputs, read_outputs }: FormationRow,
): Promise<Record<string, unknown> | null> {
  const reads = Object.entries(read_outputs ?? {})
  if (outputs === null || reads.length === 0) return outputs
  const resources = await listFormationResources(services.pool, id)
  const shown: Record<string, unknown> = { ...outputs }
  for (const [name, { resource, attribute }] of reads) {
    const found = resources.find(each => each.id === resource)
    const text = found ? await attributeFor(services, caller, found, attribute) : null
    if (text !== null) shown[name] = text
  }
  return shown
}

async function attributeFor(
  services: Services,
  caller: Caller,
  { resource_type, physical_resource_id }: { resource_type: string; physical_resource_id: string | null },
  attribute: string,
): Promise<string | null> {
  const type = findType(services, resource_type)
  if (!type || type.registered || physical_resource_id === null) return null
  const from = type.declared.attributes[attribute]
  if (!from || 'once' in from) return null
  const operation: Operation = operations.get(from.read)
  try {
    const params = itemArguments(type, operation, physical_resource_id, {}) as Record<string, string>
    const { body } = await invoke(services, operation, callAs(caller, 'formation', { params }))
    return scalar((body as JsonObject)[from.field])
  } catch (error) {
    if (error instanceof AppError && error.status < 500) return null
    throw error
  }
}
