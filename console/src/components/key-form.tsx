import { Alert, Button, Code, CopyButton, Group, Stack, Text, TextInput } from '@mantine/core'
import { useForm } from '@mantine/form'
import { createProjectKey } from '@muster/client/operations'
import { IconAlertTriangle } from '@tabler/icons-react'
import { useMutation, useQueryClient } from '@tanstack/react-query'
import { api } from '../api.ts'
import { strings } from '../strings.ts'
import { FailureAlert } from './states.tsx'

/** Creates a project key and shows it once: it is forgotten with the form. */
export function KeyForm({ projectId, onDone }: { projectId: string; onDone: () => void }) {
  const cache = useQueryClient()
  const form = useForm({ initialValues: { name: '' } })
  const create = useMutation({
    mutationFn: async ({ name }: { name: string }) =>
      createProjectKey(api, { project_id: projectId, ...(name.trim() ? { name: name.trim() } : {}) }),
    // The answer contains the key.
    gcTime: 0,
    onSuccess: () => cache.invalidateQueries({ queryKey: ['start', 'keys'] }),
  })
  if (create.data) {
    const { key } = create.data
    return (
      <Stack gap="md">
        <Alert icon={<IconAlertTriangle />} color="yellow">
          {strings.key.once}
        </Alert>
        <Code block className="wrap">
          {key}
        </Code>
        <Group>
          <CopyButton value={key}>
            {({ copied, copy }) => <Button onClick={copy}>{copied ? strings.copied : strings.copy}</Button>}
          </CopyButton>
          <Button variant="default" onClick={onDone}>
            {strings.key.done}
          </Button>
        </Group>
      </Stack>
    )
  }
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
