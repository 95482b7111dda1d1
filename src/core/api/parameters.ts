import { z } from 'zod'
import { isAcross, partial } from './across.ts'
import type { Operation } from './operation.ts'

/** Path and query parameters derived from an operation. */

/** Returns the parameter names in the path of an operation, in order. */
export const pathNames = ({ path }: Pick<Operation, 'path'>): string[] =>
  [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)

/** Returns the path of a request to an operation, with its parameters filled in. */
export const requestPath = ({ path }: Pick<Operation, 'path'>, params: Record<string, string>): string =>
  `/api/v1${path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(params[name]))}`

/** Returns the description of a path parameter: `agent_id` is the ID of an agent. */
export const pathDescription = (name: string): string =>
  name.endsWith('_id') ? `ID of the ${name.slice(0, -3).replaceAll('_', ' ')}` : `The ${name.replaceAll('_', ' ')}`

const offset = z.int().min(0).default(0).describe('Number of entries before the page. Default 0.')
const from = z.iso.datetime({ offset: true }).optional().describe('Inclusive lower bound on `created_at`')
const to = z.iso.datetime({ offset: true }).optional().describe('Inclusive upper bound on `created_at`')
const projectId = z
  .string()
  .optional()
  .describe('Project to list. Default: the project of the credential, or all projects it may read.')

const limitOf = ({ default: size, max }: Operation['pageSize']) =>
  z.int().min(1).default(size).describe(`Page size. Default ${size}; values above ${max} are reduced to ${max}.`)

/** Returns the fields of an object schema, without its refinements and transforms. */
export function fieldsOf(schema: z.ZodType | null): z.ZodRawShape {
  if (schema instanceof z.ZodPipe) return fieldsOf(schema.in as z.ZodType)
  return schema instanceof z.ZodObject ? schema.shape : {}
}

/** Returns the query parameters of an operation: the declared ones, and the common parameters of lists. */
export function queryFields({
  query,
  paged,
  timed,
  pageSize,
  shape,
  gate,
  across,
}: Operation): Record<string, z.ZodType> {
  return {
    ...(shape === 'list' && gate === 'policy' ? { project_id: projectId } : {}),
    ...(paged ? { limit: limitOf(pageSize), offset } : {}),
    ...(paged && timed ? { from, to } : {}),
    ...(isAcross(across) ? { partial } : {}),
    ...(fieldsOf(query) as Record<string, z.ZodType>),
  }
}
