import { uploadLimits } from '#content/files/actor-files.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { endUserLimits, endUserStreams } from '#core/invoke/hooks.ts'
import { module } from '#core/modules/module.ts'
import { actorRecord } from '#identity/principals/principal-store.ts'
import { actorErrors } from './errors.ts'
import { countCall, countUpload, pruneLimits } from './limits.ts'
import { actorKind } from './model.ts'
import { deleteDeadStreams, takeEndUserStream } from './open-streams.ts'
import { actorOperations } from './operations.ts'
import { purgeWork } from './purge.ts'
import { actorOfToken, tokenOperations } from './tokens.ts'

export default module('actors', {
  tags: { Actors: 'End users and personas of conversations.' },
  errors: actorErrors,
  kinds: [actorKind],
  resourceTypes: [resourceType(actorKind, { exportedWith: 'content' })],
  operations: [...actorOperations, ...tokenOperations],
  work: [purgeWork],
  sweeps: [
    { name: 'actor limits', when: '51 * * * *', run: pruneLimits },
    { name: 'open streams', when: '55 * * * *', run: deleteDeadStreams },
  ],
  extensions: [
    actorRecord.with(actorOfToken),
    endUserLimits.with(countCall),
    endUserStreams.with(takeEndUserStream),
    uploadLimits.with(countUpload),
  ],
})
