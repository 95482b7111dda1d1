import { z } from 'zod'
import { actionCatalogue } from '#core/api/catalogue.ts'
import { operations } from '#core/api/operation.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import type { Services } from '#core/base/services.ts'

/** Scopes of tokens: `mcp:access`, `muster:user`, and consented actions as `*`, `<module>:*` or `<module>:<Action>`. */

/** Included in every consent to actions; required on /mcp. */
export const MCP_ACCESS = 'mcp:access'
/** Gives a token all permissions of its user. Only for first-party clients. */
export const ACT_AS_USER = 'muster:user'

/** Scopes about the identity of the user. */
export const OPENID_SCOPES = ['openid', 'profile', 'offline_access']

const READ = /:(List|Get|Search|Download)/

export const ConsentModule = z
  .object({
    module: z.string().describe('Name of the module'),
    actions: z
      .array(
        z.object({
          action: z.string().describe('Name of the action in policies and scopes'),
          description: z.string().describe('Operations that the action permits'),
        }),
      )
      .describe('Actions of the module that can be granted'),
  })
  .meta({ id: 'OauthConsentModule' })
type ConsentModule = z.output<typeof ConsentModule>

/** Scopes selected by a user. */
export const ScopeSelection = z
  .discriminatedUnion('kind', [
    z.strictObject({ kind: z.literal('all').describe('All actions') }),
    z.strictObject({ kind: z.literal('read').describe('All actions that list, get, search or download') }),
    z.strictObject({
      kind: z.literal('modules').describe('All actions of the given modules'),
      modules: z.array(z.string().max(128)).max(200).describe('Names of the modules'),
    }),
    z.strictObject({
      kind: z.literal('actions').describe('The given actions'),
      actions: z.array(z.string().max(128)).max(2000).describe('Names of the actions'),
    }),
  ])
  .meta({ id: 'OauthSelection' })
export type ScopeSelection = z.output<typeof ScopeSelection>

/** `known` are all scopes of API tokens, in protocol format. */
type Catalogue = { modules: ConsentModule[]; actions: string[]; scopes: Set<string>; known: string }

/**
 * Modules and actions that can be granted. Excludes admin actions, which no token has, and OAuth actions, with which a
 * token could widen its own permissions.
 */
export const consentCatalogue: (services: Pick<Services, 'state'>) => Catalogue = processSingleton(() => {
  const modules = actionCatalogue(operations.all())
    .map(({ module, actions }) => ({
      module,
      actions: actions
        .filter(({ gate }) => gate === 'policy' || gate === 'owner')
        .map(({ action, description }) => ({ action, description })),
    }))
    .filter(({ module, actions }) => module !== 'oauth' && actions.length > 0)
  const actions = modules.flatMap(each => each.actions.map(({ action }) => action))
  const scopes = new Set(['*', ...modules.map(({ module }) => `${module}:*`), ...actions])
  return { modules, actions, scopes, known: [MCP_ACCESS, ...scopes].join(' ') }
})

/** Returns the sorted action scopes of a selection and its unknown names. */
export function scopesOf(
  services: Pick<Services, 'state'>,
  selection: ScopeSelection,
): { scopes: string[]; unknown: string[] } {
  const { actions, scopes } = consentCatalogue(services)
  if (selection.kind === 'all') return { scopes: ['*'], unknown: [] }
  if (selection.kind === 'read') return { scopes: actions.filter(action => READ.test(action)).sort(), unknown: [] }
  const selected =
    selection.kind === 'modules'
      ? selection.modules.map(name => ({ name, scope: `${name}:*` }))
      : selection.actions.map(name => ({ name, scope: name }))
  return {
    scopes: [...new Set(selected.map(({ scope }) => scope))].sort(),
    unknown: selected.filter(({ name, scope }) => !scopes.has(scope) || name.endsWith('*')).map(({ name }) => name),
  }
}

/** Returns only the action scopes. */
export const actionScopes = (scopes: readonly string[]): string[] =>
  scopes.filter(scope => scope !== MCP_ACCESS && scope !== ACT_AS_USER && !OPENID_SCOPES.includes(scope))

/** Whether `others` include all of the action scopes. */
export const areWithin = (scopes: readonly string[], others: readonly string[]): boolean =>
  others.includes('*') ||
  scopes.every(scope => others.includes(scope) || others.includes(`${scope.slice(0, scope.indexOf(':'))}:*`))

/** Returns the policy equivalent to action scopes. */
export const policyOf = (scopes: readonly string[], projectId: string) => ({
  statement: [{ effect: 'Allow' as const, action: actionScopes(scopes), resource: [`srn:${projectId}:*:*`] }],
})
