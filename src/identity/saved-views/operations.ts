import { canSeeProject } from '#core/api/access.ts'
import { equalsFilter } from '#core/api/filters.ts'
import { srn } from '#core/api/kind.ts'
import type { GateVerdict, Operation } from '#core/api/operation.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import type { Caller } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import { MAX_VIEWS, SavedViewInput, SavedViewPatch, type SavedViewRow, savedViewKind } from './model.ts'
import { holdsProject, lockAndCount } from './store.ts'

const savedViews = resource(savedViewKind, { path: '/saved-views', tag: 'Saved views' })

/** Admits only users: a key or a client of a user has no views. @throws FORBIDDEN */
const usersOnly =
  (action: string) =>
  ({ credential }: Caller): void => {
    if (credential.type !== 'user')
      raise('FORBIDDEN', {
        message: 'Saved views belong to a user: keys and OAuth clients have none',
        meta: { action },
      })
  }

/** A saved view is visible to its user alone, who needs no permission for it. */
const owned = (action: string) =>
  ({
    gate: 'owner',
    admit: usersOnly(`saved-views:${action}`),
    decide: ({ user }: Caller, row: SavedViewRow): GateVerdict => (row.user_id === user.id ? 'allow' : 'hide'),
  }) as const

export const savedViewOperations: Operation[] = [
  savedViews.create({
    gate: 'owner',
    admit: usersOnly('saved-views:CreateSavedView'),
    summary: 'Save a view',
    description: `Saves the filters of a list for the calling user, at most ${MAX_VIEWS} in a project. Other users do not see it. Requires some permission in the project, and a user instead of a key.`,
    body: SavedViewInput,
    raises: ['NAME_CONFLICT', 'RESOURCE_NOT_FOUND'],
    async make({ body: { project_id, ...values }, caller, tx, audit }) {
      if (!project_id)
        return raiseInvalid({ code: 'REQUIRED', path: 'project_id', message: 'is required: users have no project' })
      audit.resource_srn = srn(null, savedViewKind.name, '*')
      if (!canSeeProject(caller, project_id) || !(await holdsProject(tx, project_id)))
        return raise('RESOURCE_NOT_FOUND', { meta: { id: project_id } })
      audit.project_id = project_id
      audit.resource_srn = srn(project_id, savedViewKind.name, '*')
      if ((await lockAndCount(tx, caller.user.id, project_id)) >= MAX_VIEWS)
        return raiseInvalid({
          code: 'INVALID_VALUE',
          path: 'project_id',
          message: `has ${MAX_VIEWS} saved views of yours, which is the limit: delete one first`,
        })
      return savedViewKind.insert(tx, { ...values, project_id, user_id: caller.user.id })
    },
  }),
  // Order and filters by saved_views_name.
  savedViews.list({
    gate: 'owner',
    admit: usersOnly('saved-views:ListSavedViews'),
    description: 'Returns the saved views of the calling user, by name.',
    visible: ({ caller }) => sql.fragment`t.user_id = ${caller.user.id}`,
    filters: { project_id: equalsFilter('project_id'), view: equalsFilter('view') },
    order: () => sql.fragment`t.name, t.id`,
    across: {
      order: [
        ['name', 'asc', 'collated'],
        ['id', 'asc'],
      ],
    },
  }),
  savedViews.get(owned('GetSavedView')),
  savedViews.update({ ...owned('UpdateSavedView'), body: SavedViewPatch, raises: ['NAME_CONFLICT'] }),
  savedViews.remove(owned('DeleteSavedView')),
]
