import { Button, PasswordInput, Select, Stack, TextInput } from '@mantine/core'
import { useForm } from '@mantine/form'
import { notifications } from '@mantine/notifications'
import type { AiProviderInput } from '@muster/client'
import { checkAiProvider, createAiProvider, createSecret } from '@muster/client/operations'
import { useMutation, useQueryClient } from '@tanstack/react-query'
import { api } from '#api.ts'
import * as strings from '#strings.ts'
import { FailureAlert } from './states.tsx'
import { visible } from './text.tsx'

const texts = strings.provider

const VENDORS: AiProviderInput['provider'][] = [
  'openai',
  'anthropic',
  'google',
  'xai',
  'groq',
  'ollama',
  'azure',
  'bedrock',
  'vertex',
  'gateway',
  'custom',
]

/** Connects a model provider: stores its key as a secret, creates it, and checks that it answers. */
export function ProviderForm({ projectId, onDone }: { projectId: string; onDone: () => void }) {
  const cache = useQueryClient()
  const form = useForm({
    initialValues: { name: '', provider: 'openai' as AiProviderInput['provider'], model: '', key: '', url: '' },
    validate: {
      name: value => (value.trim() ? null : strings.name),
      model: value => (value.trim() ? null : texts.modelHelp),
    },
  })
  const connect = useMutation({
    mutationFn: async ({ name, provider, model, key, url }: typeof form.values) => {
      const secret = key
        ? await createSecret(api, { project_id: projectId, name: `${name.trim()} API key`, value: key })
        : null
      const created = await createAiProvider(api, {
        project_id: projectId,
        name: name.trim(),
        provider,
        default_model: model.trim(),
        ...(secret ? { secret_id: secret.id } : {}),
        ...(url ? { base_url: url.trim() } : {}),
      })
      return checkAiProvider(api, { ai_provider_id: created.id })
    },
    onSuccess: ({ ok, model, latency_ms, error }) => {
      void cache.invalidateQueries()
      notifications.show(
        ok
          ? { title: texts.ok, message: strings.start.checkOk(model, latency_ms), color: 'teal' }
          : { title: texts.notOk, message: visible(error?.message ?? ''), color: 'red', autoClose: false },
      )
      form.reset()
      onDone()
    },
  })
  return (
    <form onSubmit={form.onSubmit(values => connect.mutate(values))}>
      <Stack gap="md">
        <TextInput label={strings.name} required data-autofocus {...form.getInputProps('name')} />
        <Select label={texts.provider} data={VENDORS} allowDeselect={false} {...form.getInputProps('provider')} />
        <TextInput label={texts.model} description={texts.modelHelp} required {...form.getInputProps('model')} />
        <PasswordInput
          label={texts.key}
          description={texts.keyHelp}
          autoComplete="off"
          {...form.getInputProps('key')}
        />
        <TextInput label={texts.url} description={texts.urlHelp} {...form.getInputProps('url')} />
        {connect.error && <FailureAlert error={connect.error} />}
        <Button type="submit" loading={connect.isPending}>
          {texts.button}
        </Button>
      </Stack>
    </form>
  )
}
