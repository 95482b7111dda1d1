import { clientRoutes, type Description, EVENTS, FORM, JSON_TYPE, type Parameter, resolve } from './description.ts'

/**
 * Returns a copy of the description for the generator of types: without streams, which our layer has, without refusals,
 * headers and operations that clients do not have. The generator would type the text of a stream as the result.
 */
export function reduce(source: Description): Description {
  const description: Description = structuredClone(source)
  const operations = new Set(clientRoutes(description).map(({ operation }) => operation))
  for (const methods of Object.values(description.paths))
    for (const [method, operation] of Object.entries(methods)) {
      if (!operations.has(operation)) {
        delete methods[method]
        continue
      }
      for (const each of operation.parameters ?? []) acceptNumber(resolve(description, each))
      operation.parameters = operation.parameters?.filter(each => resolve(source, each).in !== 'header')
      for (const [status, response] of Object.entries(operation.responses)) {
        if (status >= '300') delete operation.responses[status]
        else delete resolve(description, response).content?.[EVENTS]
      }
      const sent = operation.requestBody?.content
      if (sent?.[FORM]) for (const type of Object.keys(sent)) if (type !== FORM) delete sent[type]
      const selector = operation['x-stream']?.selected_by
      if (!selector) continue
      const body = resolve(description, sent?.[JSON_TYPE]?.schema ?? {})
      if (!body.properties?.[selector.name])
        throw new Error(`${operation.operationId} has no property ${selector.name} in its body`)
      delete body.properties[selector.name]
    }
  const { 'x-error-codes': _codes, ...reduced } = description
  return reduced as Description
}

/** Returns a copy of the description in which numbers of queries are typed as numbers too. */
export function acceptNumbers(source: Description): Description {
  const description: Description = structuredClone(source)
  for (const { operation } of clientRoutes(description))
    for (const each of operation.parameters ?? []) acceptNumber(resolve(description, each))
  return description
}

/** Types a number of the query that is described as digits as a number too. */
function acceptNumber({ name, in: part, schema }: Parameter): void {
  const isNumber = ['limit', 'offset'].includes(name) || /^\^(0\*)?(\[1-9\])?\\d/.test(schema.pattern ?? '')
  if (part === 'query' && schema.type === 'string' && isNumber) schema.type = ['integer', 'string']
}
