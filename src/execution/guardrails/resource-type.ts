import { inlineSchema, type JsonObject } from '#core/api/flatten.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { AppError, type Problem } from '#core/base/errors.ts'
import { checkGuardrailDocument } from './document.ts'
import { GuardrailDocument, guardrailKind } from './model.ts'

/** Guardrail resource of templates: the keys of the document are separate properties. */

const schemas = inlineSchema(GuardrailDocument).properties as Record<string, JsonObject>
const names = Object.keys(schemas)

const documentOf = (properties: JsonObject): JsonObject =>
  Object.fromEntries(names.filter(name => properties[name] != null).map(name => [name, properties[name]]))

export const guardrailType = resourceType(guardrailKind, {
  without: ['document'],
  together: names,
  exhaustive: true,
  translate: {
    properties: schemas,
    required: ['class'],
    arguments: properties => ({
      ...Object.fromEntries(Object.entries(properties).filter(([name]) => !names.includes(name))),
      ...(names.some(name => name in properties) ? { document: documentOf(properties) } : {}),
    }),
    shown: ({ document }) =>
      Object.fromEntries(names.map(name => [name, (document as JsonObject | undefined)?.[name] ?? null])),
  },
  check: properties => (properties.class == null ? [] : documentProblems(documentOf(properties))),
})

function documentProblems(document: JsonObject): readonly Problem[] {
  try {
    checkGuardrailDocument(document as GuardrailDocument)
    return []
  } catch (error) {
    if (error instanceof AppError && error.code === 'VALIDATION_FAILED') return error.meta?.problems as Problem[]
    throw error
  }
}
