import { endUserContent } from '#control/retention/erasure.ts'
import { footprints } from '#control/storage/footprint.ts'
import { resourceType } from '#core/api/resource-type.ts'
import { module } from '#core/modules/module.ts'
import { projectDeleteHooks } from '#identity/projects/delete.ts'
import { fileFootprint } from '../footprint.ts'
import { enqueueProjectBytes } from '../storage/backends.ts'
import { actorFileContent } from './actor-files.ts'
import { fileErrors } from './errors.ts'
import { fileKind } from './model.ts'
import { fileOperations } from './operations.ts'
import { fileHandlers, fileSchedules } from './sweep.ts'

export default module('files', {
  tags: { Files: 'Files and their content, in one path tree with documents.' },
  errors: fileErrors,
  kinds: [fileKind],
  resourceTypes: [
    resourceType(fileKind, {
      update: 'updateFileMetadata',
      exportedWith: 'content',
      defaults: { prefix: '/' },
      without: ['name', 'path', 'storage_type', 'storage_path'],
    }),
  ],
  operations: fileOperations,
  handlers: fileHandlers,
  schedules: fileSchedules,
  extensions: [
    endUserContent.with(actorFileContent),
    footprints.with(fileFootprint),
    projectDeleteHooks.with(enqueueProjectBytes),
  ],
})
