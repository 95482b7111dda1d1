import type { JsonObject } from '#core/api/flatten.ts'
import type { Services } from '#core/base/services.ts'
import { openJson, sealJson } from '#core/secrets/json.ts'
import type { FormationRow } from '../records/model.ts'
import type { ResourceDeclaration } from '../template/shape.ts'
import { findType } from '../types/find.ts'
import { NO_ECHO } from './compile.ts'

/** Sealed values of templates and operations. */

type Values = Record<string, JsonObject>
type Resources = Record<string, ResourceDeclaration>

/** Splits a template into the stored form, with placeholders, and its write-only values. */
export function withholdSecrets(services: Services, template: JsonObject): { template: JsonObject; values: Values } {
  const values: Values = {}
  const resources = Object.entries(template.resources as Resources).map(([id, resource]) => {
    const names = (findType(services, resource.type)?.writeOnly ?? []).filter(
      name => resource.properties && name in resource.properties,
    )
    if (names.length === 0) return [id, resource]
    const { properties = {} } = resource
    values[id] = Object.fromEntries(names.map(name => [name, properties[name]]))
    return [
      id,
      { ...resource, properties: { ...properties, ...Object.fromEntries(names.map(name => [name, NO_ECHO])) } },
    ]
  })
  return { template: { ...template, resources: Object.fromEntries(resources) }, values }
}

/** Returns the authored form of a stored template. */
export function restoreSecrets(template: JsonObject, values: Values): JsonObject {
  const resources = Object.entries(template.resources as Resources).map(([id, resource]) =>
    values[id] ? [id, { ...resource, properties: { ...resource.properties, ...values[id] } }] : [id, resource],
  )
  return { ...template, resources: Object.fromEntries(resources) }
}

const rowOf = (kind: string, id: string, project_id: string) => ({ kind, id, project_id })

export const sealValues = (services: Services, id: string, projectId: string, values: Values): string | null =>
  Object.keys(values).length === 0 ? null : sealJson(services, values, rowOf('formation', id, projectId))

/** Returns the authored form of the template of a formation. Raises SECRET_NOT_DECRYPTABLE. */
export function authoredTemplate(
  services: Services,
  { id, project_id, template, sealed_values }: FormationRow,
): JsonObject {
  if (sealed_values === null) return template
  return restoreSecrets(
    template,
    openJson<Values>(services, sealed_values, rowOf('formation', id, project_id), `Template of formation ${id}`),
  )
}

export const sealParameters = (
  services: Services,
  operationId: string,
  projectId: string,
  parameters: Record<string, string>,
): string | null =>
  Object.keys(parameters).length === 0
    ? null
    : sealJson(services, parameters, rowOf('formation_operation_sealed_parameters', operationId, projectId))

export const openParameters = (
  services: Services,
  operationId: string,
  projectId: string,
  sealed: string | null,
): Record<string, string> =>
  sealed === null
    ? {}
    : openJson(
        services,
        sealed,
        rowOf('formation_operation_sealed_parameters', operationId, projectId),
        'Parameters of the operation',
      )

/** Seals outputs that are returned only in the response of the request; null without any. */
export const sealAnswer = (
  { services, operation, projectId }: { services: Services; operation: { id: string }; projectId: string },
  outputs: Record<string, string>,
): string | null =>
  Object.keys(outputs).length === 0
    ? null
    : sealJson(services, outputs, rowOf('formation_operation_sealed_answer', operation.id, projectId))

export const openAnswer = (
  services: Services,
  operationId: string,
  projectId: string,
  sealed: string,
): Record<string, string> =>
  openJson(
    services,
    sealed,
    rowOf('formation_operation_sealed_answer', operationId, projectId),
    'Outputs of the operation',
  )
