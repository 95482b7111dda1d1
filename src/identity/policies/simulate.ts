import { z } from 'zod'
import { passesAdminGate } from '#core/api/access.ts'
import { policyCatalogue } from '#core/api/catalogue.ts'
import { kinds } from '#core/api/kind.ts'
import { operations } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import { type Caller, principalFacts } from '#core/iam/caller.ts'
import { decide, type Layer } from '#core/iam/decide.ts'
import { explain } from '#core/iam/explain.ts'
import { canonicalActions, canonicalType, splitName } from '#core/iam/names.ts'
import { compileDocument } from '#core/iam/policy.ts'
import { servicesOfId } from '#core/services/cells.ts'
import { resolveSubject } from '../principals/principals.ts'
import { policyDocumentProblems, policyText } from './model.ts'

export const SimulationInput = z
  .strictObject({
    user_id: z.string().optional().describe('ID of a user with a user token; exclusive with key_id'),
    key_id: z.string().optional().describe('ID of a project key; exclusive with user_id'),
    action: z.string().min(1).max(200).describe('Requested action, `<module>:<Action>`'),
    resource: z.string().min(1).max(2048).describe('Resource, `srn:<project>:<type>:<id>`'),
    tags: z.record(z.string().max(128), z.string().max(256)).optional().describe('Tags of the resource'),
    document: policyText
      .meta({ description: 'Text of a policy that is not saved, which counts as a further policy of the principal' })
      .optional(),
    policy_id: z
      .string()
      .optional()
      .describe('ID of the policy in whose place `document` counts where it is attached. Only with `document`.'),
  })
  .refine(body => body.policy_id === undefined || body.document !== undefined, {
    message: 'is allowed only with document',
    path: ['policy_id'],
  })
  .refine(body => (body.user_id === undefined) !== (body.key_id === undefined), {
    message: 'or key_id is required, but not both',
    path: ['user_id'],
  })
  .meta({
    id: 'PolicySimulationInput',
    example: {
      user_id: 'user_01k5p3vd7r9hj2x8m4qcw6tz0e',
      action: 'agents:GetAgent',
      resource: 'srn:proj_01k5p3vd7r9hj2x8m4qcw6tz0e:agent:agent_01k5p3vd7r9hj2x8m4qcw6tz0e',
    },
  })

export const Simulation = z
  .object({
    allowed: z.boolean().describe('Whether all layers together allow the action'),
    layers: z
      .array(
        z.object({
          kind: z.enum(['user', 'key', 'grant', 'trigger', 'agent']),
          id: z.string(),
          decision: z.enum(['allow', 'deny', 'none']),
          policy_id: z.string().nullable(),
          statement_index: z.int().nullable().describe('Index of the statement that determined the decision, from 0'),
        }),
      )
      .describe('Decision per layer; every layer must allow. Empty for admins.'),
  })
  .meta({ id: 'PolicySimulation' })

/**
 * Returns the gate of an action from the operations that require it. @throws VALIDATION_FAILED for an unknown action
 */
function gateOf(action: string): string {
  const [module, name] = action.split(':')
  const declared = operations.all()
  if (!policyCatalogue(declared).actions.get(module)?.has(name))
    raiseInvalid({ code: 'UNKNOWN_ACTION', path: 'action', message: 'is not an action of this deployment' })
  return declared.find(operation => operation.action === action)?.gate ?? 'policy'
}

type Subject = NonNullable<Awaited<ReturnType<typeof resolveSubject>>>
type Evaluated = { layers: Layer[]; layerIds: string[]; policyIds: (string | null)[][] }

/**
 * Returns the layers of a subject with an unsaved text: in place of the policy where it is attached, otherwise after
 * the policies of the user or the key. The first policy of a key adds the layer of the key.
 */
function withDocument(
  { caller, layerIds, policyIds }: Subject,
  { document, policy_id }: Pick<z.output<typeof SimulationInput>, 'document' | 'policy_id'>,
): Evaluated {
  const text = compileDocument(policyDocumentProblems(document))
  const { type, id } = caller.principal
  const kind = type === 'api_key' ? 'key' : 'user'
  const isAttached = policyIds.some(ids => ids.some(each => each === policy_id))
  const isFirst = kind === 'key' && !isAttached && !caller.layers.some(layer => layer.kind === kind)
  const isAdded = (layer: Layer) => !isAttached && layer.kind === kind
  const layers: Layer[] = isFirst ? [...caller.layers, { kind, documents: [] }] : caller.layers
  return {
    layers: layers.map((layer, index) => ({
      kind: layer.kind,
      documents: [
        ...layer.documents.map((stored, at) => (policyIds[index][at] === policy_id ? text : stored)),
        ...(isAdded(layer) ? [text] : []),
      ],
    })),
    layerIds: isFirst ? [...layerIds, id] : layerIds,
    policyIds: layers.map((layer, index) => [
      ...(policyIds[index] ?? []),
      ...(isAdded(layer) ? [policy_id ?? null] : []),
    ]),
  }
}

/** Returns the services of the cell of a key. Users are in every cell. */
const cellOfSubject = (services: Services, { key_id }: { key_id?: string }): Services | Promise<Services> =>
  key_id === undefined ? services : servicesOfId(services, key_id)

/**
 * Simulates a request of a user (with a user token) or a key, and returns the deciding statement of each layer. Users
 * may simulate themselves and their keys.
 * @throws FORBIDDEN, RESOURCE_NOT_FOUND, VALIDATION_FAILED
 */
export async function simulatePolicies(
  services: Services,
  caller: Caller,
  input: z.output<typeof SimulationInput>,
): Promise<z.infer<typeof Simulation>> {
  const admin = passesAdminGate(caller, 'policies:GetPolicy', null)
  const subject = await resolveSubject(await cellOfSubject(services, input), input)
  const isOwn = caller.credential.type === 'user' && subject?.caller.user.id === caller.user.id
  if (!admin && !isOwn) raise('FORBIDDEN', { meta: { action: 'policies:GetPolicy' } })
  if (!subject) return raise('RESOURCE_NOT_FOUND', { meta: { id: input.user_id ?? input.key_id } })
  const [action] = canonicalActions(input.action, policyCatalogue(operations.all()))
  const gate = gateOf(action)
  const name = splitName(input.resource)
  if (!name)
    return raiseInvalid({ code: 'INVALID_RESOURCE', path: 'resource', message: 'must be srn:<project>:<type>:<id>' })
  const type = canonicalType(name.type)
  const request = {
    action,
    names: [`srn:${name.project}:${type}:${name.id}`],
    type,
    resourceTags: input.tags ?? {},
    facts: principalFacts(subject.caller),
  }
  const {
    layers: evaluated,
    layerIds,
    policyIds,
  }: Evaluated = input.document === undefined
    ? { ...subject, layers: subject.caller.layers }
    : withDocument(subject, input)
  const bound = subject.caller.project_id
  const reachable = bound === null || bound === name.project
  const kind = kinds.find(type)
  const allowed =
    gate === 'admin'
      ? passesAdminGate(
          { ...subject.caller, layers: evaluated },
          action,
          kind ? { kind, row: { id: name.id, project_id: null } } : null,
        )
      : reachable && decide(evaluated, request)
  const layers = explain(evaluated, request).map((layer, index) => ({
    kind: layer.kind,
    id: layerIds[index],
    decision: layer.decision,
    policy_id: layer.document_index === null ? null : policyIds[index][layer.document_index],
    statement_index: layer.statement_index,
  }))
  return { allowed, layers }
}
