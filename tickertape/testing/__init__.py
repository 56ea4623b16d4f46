"""What plugin authors test with, shipped in the wheel. Nothing is imported here: the pytest plugin must stay light.

runner.RunnerConformance     what every ModelRunner must do; override the fixture `subject`
engine.EngineConformance     what every Engine must do; override the fixture `subject`
rig.EngineSubject            an engine, and what the kit must know of it
engines.paged_engine         our own engine over a runner backend
subject.Subject              a runner, and the truth about its model
models                       tiny models made on the fly: write_llama, write_scripted, plain_model
stepper.Stepper              batches made by hand, without the scheduler
serving.serve, serving.ask   whole requests through the scheduler and the engine loop
checks.check_idle            the common end check
"""
