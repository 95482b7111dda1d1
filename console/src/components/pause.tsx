import { Stack, Text, TextInput } from '@mantine/core'
import { pauseProject } from '@muster/client/operations'
import { IconPlayerPause } from '@tabler/icons-react'
import { api } from '#api.ts'
import * as strings from '#strings.ts'
import { FormButton, useAction } from './actions.tsx'
import { useDraft } from './draft.tsx'
import { SubmitRow } from './submit-row.tsx'

/** A button that pauses a project, after a reason that everybody sees. */
export function PauseButton({ projectId }: { projectId: string }) {
  return (
    <FormButton
      label={strings.overview.pause}
      variant="default"
      leftSection={<IconPlayerPause size={16} />}
      form={close => <PauseForm projectId={projectId} onDone={close} />}
    />
  )
}

function PauseForm({ projectId, onDone }: { projectId: string; onDone: () => void }) {
  const { value: reason, setValue: setReason, forget } = useDraft('pause', '')
  const pause = useAction({
    run: async () => pauseProject(api, { project_id: projectId, ...(reason.trim() ? { reason: reason.trim() } : {}) }),
    stale: [['projects'], ['project', projectId]],
    onDone: () => {
      forget()
      onDone()
    },
  })
  return (
    <form
      onSubmit={event => {
        event.preventDefault()
        pause.mutate()
      }}
    >
      <Stack gap="md">
        <Text>{strings.overview.pauseText}</Text>
        <TextInput
          label={strings.overview.reason}
          value={reason}
          onChange={event => setReason(event.currentTarget.value)}
          data-autofocus
        />
        <SubmitRow label={strings.overview.pause} isPending={pause.isPending} error={pause.error} onCancel={onDone} />
      </Stack>
    </form>
  )
}
