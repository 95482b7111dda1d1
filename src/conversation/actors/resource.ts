import { resource } from '#core/api/resource.ts'
import { actorKind } from './model.ts'

export const actors = resource(actorKind, { path: '/actors', tag: 'Actors' })
