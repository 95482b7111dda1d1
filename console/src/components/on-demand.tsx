import { type ComponentType, createElement, use } from 'react'

/**
 * A component whose script loads when it is shown, or earlier by `preload`. A script that does not arrive is an error of
 * the place that shows it, and the page stays: a reload would lose what other views contain.
 */
export function onDemand<Props extends object>(load: () => Promise<ComponentType<Props>>) {
  let loading: Promise<void> | undefined
  let View: ComponentType<Props> | undefined
  const start = (): Promise<void> => {
    loading ??= load().then(loaded => {
      View = loaded
    })
    return loading
  }
  const OnDemand = (props: Props) => {
    if (!View) use(start())
    return createElement(View as ComponentType<Props>, props)
  }
  // The view reports a missing script.
  return Object.assign(OnDemand, { preload: () => start().catch(() => {}) })
}
