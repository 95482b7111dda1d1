import { Button, Stack, Text, TextInput } from '@mantine/core'
import { useForm } from '@mantine/form'
import { createProjectKey } from '@muster/client/operations'
import { useMutation, useQueryClient } from '@tanstack/react-query'
import { api } from '../api.ts'
import * as strings from '../strings.ts'
import { SecretOnce } from './secret.tsx'
import { FailureAlert } from './states.tsx'

/** Creates a project key and shows it once: it is forgotten with the form. */
export function KeyForm({ projectId, onDone }: { projectId: string; onDone: () => void }) {
  const cache = useQueryClient()
  const form = useForm({ initialValues: { name: '' } })
  const create = useMutation({
    mutationFn: async ({ name }: { name: string }) =>
      createProjectKey(api, { project_id: projectId, ...(name.trim() ? { name: name.trim() } : {}) }),
    onSuccess: () =>
      Promise.all(
        [
          ['keys', projectId],
          ['start', 'keys'],
        ].map(queryKey => cache.invalidateQueries({ queryKey })),
      ),
  })
  if (create.data) return <SecretOnce secret={create.data.key} notice={strings.key.once} onDone={onDone} />
  return (
    <form onSubmit={form.onSubmit(values => create.mutate(values))}>
      <Stack gap="md">
        <TextInput
          label={strings.key.name}
          description={strings.key.nameHelp}
          data-autofocus
          {...form.getInputProps('name')}
        />
        <Text size="sm" c="dimmed">
          {strings.key.policy}
        </Text>
        {create.error && <FailureAlert error={create.error} />}
        <Button type="submit" loading={create.isPending}>
          {strings.create}
        </Button>
      </Stack>
    </form>
  )
}
